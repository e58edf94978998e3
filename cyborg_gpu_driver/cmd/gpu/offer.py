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

from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import table
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.report import memory
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.report.content import traits


class ListOffer(table.Lister):
    """List what each GPU offers, and how much of it can be created now.

    The column gpus has the GPUs of a group that NVLink connects. An offer is
    shown as reported if the agent would report it now. The reason why an offer
    is not reported is also written to standard error.
    """

    brief = ('address', 'profile', 'total', 'in_use', 'creatable', 'reported')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--all', action='store_true', dest='everything',
            help='list what the GPUs could offer in any mode, not only in the '
                 'mode of their policy')
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine
        machine.explain()
        rows = [row for gpu in machine.host.gpus
                for row in _rows(machine, gpu, parsed_args.everything)]
        for problem in problems(rows, 'profile'):
            cmd_machine.say(problem)
        return _NAMES, [tuple(row.values()) for row in rows]


_NAMES = ('address', 'profile', 'resource_class', 'total', 'in_use',
          'creatable', 'reported', 'problem', 'traits', 'gpus')


def _rows(machine, gpu, everything):
    """Yield a row for each offer of a GPU; one row if the agent cannot bind
    anything on it, because it cannot be read.
    """
    if memory.is_unread(machine.state_path, machine.host, gpu):
        if machine.settings.policy_for(gpu) or everything:
            yield _row(str(gpu.address), columns.Optional(None),
                       columns.Optional(None), 0, 0, 0, 'no',
                       columns.Optional(machine.problem(gpu)
                                        or condition.state(gpu)),
                       columns.Names(()), columns.Names(()))
        return
    left = machine.problem(gpu)
    for offer in machine.offers(gpu, everything):
        reported = machine.reported(offer) is not None
        problem = '' if reported else offer.problem or left
        # With --all, the row shows what a policy could offer.
        barred = offer.problem if everything else not reported
        yield _row(
            str(gpu.address), offer.profile, names.resource_class(offer),
            offer.total, offer.in_use, 0 if barred else offer.creatable,
            'yes' if reported else 'no',
            columns.Optional(problem or offer.busy or None),
            columns.Names(traits.traits(gpu, offer)),
            columns.Names(tuple(map(str, offer.members or (gpu.address,)))))


def _row(*values):
    return dict(zip(_NAMES, values, strict=True))


def problems(rows, name):
    """Yield one line for each GPU and problem, with all affected offers.

    :param name: the column that names an offer.
    """
    hit = {}
    for row in rows:
        why = row['problem'].machine_readable()
        if why:
            what = ('none is free now' if row['reported'] == 'yes'
                    else 'not reported')
            hit.setdefault((row['address'], what, why), []).append(row[name])
    for (address, what, why), affected in hit.items():
        named = ', '.join(item for item in affected if isinstance(item, str))
        yield (f'{address}: {what}' + (f' ({named})' if named else '')
               + f': {why}')
