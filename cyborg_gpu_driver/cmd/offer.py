# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""``cyborg-gpu offer list``."""

from __future__ import annotations

from cliff import lister

from cyborg_gpu_driver.cmd import columns
from cyborg_gpu_driver.cmd import machine as cmd_machine
from cyborg_gpu_driver.report import names
from cyborg_gpu_driver.report import traits


class ListOffer(lister.Lister):
    """List what each GPU offers, and how much of it can be made now.

    What stands in the way of an offer goes to standard error.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--all', action='store_true', dest='everything',
            help='list what the GPUs could offer in any mode, not only in '
                 'that of their policy')
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine
        machine.explain()
        found = [(gpu, offer) for gpu in machine.host.gpus
                 for offer in machine.offers(gpu, parsed_args.everything)]
        for problem in _problems(offer for _, offer in found):
            cmd_machine.say(problem)
        return (
            ('address', 'profile', 'resource_class', 'total', 'in_use',
             'creatable', 'traits'),
            [(str(offer.gpu), offer.profile, names.resource_class(offer),
              offer.total, offer.in_use, offer.creatable,
              columns.Names(traits.traits(gpu, offer)))
             for gpu, offer in found])


def _problems(offers):
    """One line for each GPU and problem, however many profiles it hits."""
    profiles = {}
    for offer in offers:
        for what, why in (('not reported', offer.problem),
                          ('none to be had now', offer.busy)):
            if why:
                profiles.setdefault((offer.gpu, what, why), []).append(
                    offer.profile)
    for (address, what, why), affected in profiles.items():
        yield f'{address}: {what} ({", ".join(affected)}): {why}'
