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

"""``openstack gpu cordon`` and ``openstack gpu uncordon``."""

from __future__ import annotations

import time

from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cloud.cordons import change
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.osc import base
from cyborg_gpu_driver.partition import cordon

_NAMES = ('GPU', 'Cordoned', 'Cordons')
WAIT = 180.0
"""In seconds. An agent reports every minute, and a report may just have begun.
"""


class CordonGpu(base.Lister):
    """Keep new servers away from a GPU, or from all GPUs of a host.

    Disables the devices in Cyborg and waits until cyborg-agent has reserved
    all inventories of the GPUs in Placement. Running servers are not affected.
    A trait of the GPU's providers holds who cordoned it, when and why, because
    Cyborg's API takes no reason. A GPU that is already cordoned in this way
    keeps its reason. Needs the role admin. The exit code is 1 if cyborg-agent
    does not reserve a GPU in time.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        add_gpus(parser)
        add_reason(parser)
        parser.add_argument(
            '--wait', metavar='<seconds>', type=moments.seconds(0),
            default=WAIT, help='how long to wait until the GPUs are reserved '
                               '(default: %(default)g)')
        return parser

    def take_action(self, parsed_args):
        found = cordon_gpus(self.cloud, parsed_args)
        open_ = wait_closed(self.cloud, parsed_args, found, parsed_args.wait)
        self.code = int(open_)
        return _NAMES, [_row(address, known)
                        for address, known in found.items()]


class UncordonGpu(base.Lister):
    """Offer a GPU, or all GPUs of a host, to new servers again.

    Enables the devices in Cyborg; cyborg-agent offers them after at most two
    reports. Cordons that were made on the host are not lifted. Needs the role
    admin. The exit code is 1 if a GPU is still cordoned.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        add_gpus(parser)
        return parser

    def take_action(self, parsed_args):
        left = _each(
            change.find(self.cloud, parsed_args.host, parsed_args.gpu),
            lambda gpu: change.open_(self.cloud, gpu))
        for address, known in left.items():
            if known:
                self.code = 1
                base.say(
                    f'GPU {address} is still cordoned: {cordon.text(known)}. '
                    f'To lift that, run on {parsed_args.host}: cyborg-gpu gpu '
                    f'uncordon {address}')
        return _NAMES, [_row(address, known)
                        for address, known in left.items()]


def add_gpus(parser):
    """Add ``HOST`` and ``GPU``."""
    parser.add_argument('host', metavar='HOST',
                        help='name of the host, as "gpu host list" shows it')
    parser.add_argument('gpu', metavar='GPU', nargs='?',
                        help='PCI address of a GPU (default: all GPUs of the '
                             'host)')


def add_reason(parser):
    """Add ``--reason``."""
    parser.add_argument(
        '--reason', metavar='<text>', required=True,
        help='reason for the cordon, kept with it; one line of at '
             f'most {cordon.REASON_BYTES} bytes')


def cordon_gpus(cloud, parsed_args) -> dict[str, cordon.Cordons]:
    """Cordon the GPUs of a command line; return their cordons by address.

    :raises InvalidValue: if the GPU or the reason is not valid.
    :raises CloudError: if there is no such GPU, or a request to a service
        fails.
    """
    new = cordon.Cordon(
        cordon.Source.CYBORG, float(int(time.time())), cloud.user,
        cordon.reason(parsed_args.reason))
    return _each(change.find(cloud, parsed_args.host, parsed_args.gpu),
                 lambda gpu: change.close(cloud, gpu, new))


def wait_closed(cloud, parsed_args, addresses, seconds) -> bool:
    """Wait until GPUs are closed; report and return whether any is still open.
    """
    open_ = change.wait_closed(
        cloud, parsed_args.host, addresses, seconds, lambda number: base.say(
            f'Waiting until cyborg-agent has reserved {number} providers'))
    if open_:
        base.say(
            f'cyborg-agent on {parsed_args.host} has not reserved '
            f'{", ".join(open_)}. Placement may still give a new server a '
            'part of them. Check that the agent runs and can ask Cyborg.')
    return bool(open_)


def _each(gpus, act):
    """Apply a function to each GPU, and return the cordons of each.

    If it fails for a GPU, the GPUs that are already changed are reported,
    because they remain changed.
    """
    found = {}
    try:
        for gpu in gpus:
            found[gpu.address] = act(gpu)
    finally:
        if 0 < len(found) < len(gpus):
            base.say('Done before an error: ' + ', '.join(found))
    return found


def _row(address, known):
    return address, bool(known), columns.Names(map(str, known))
