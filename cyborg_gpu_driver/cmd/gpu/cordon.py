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

"""``cyborg-gpu gpu cordon`` and ``gpu uncordon``."""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import table
from cyborg_gpu_driver.cmd.output import terminal
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.record import store

_NAMES = ('address', 'cordoned', 'cordons')


class _Command(table.Lister):
    """A command that changes the cordons of some GPUs, or of all.

    ``code``, which :meth:`take_action` may set, is the exit code.
    """

    code = 0

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'gpu', metavar='GPU', nargs='*',
            help=f'a GPU, by {choice.WAYS}; for a GPU that is no longer '
                 'present, give its full PCI address (default: all)')
        return parser

    def run(self, parsed_args):
        return super().run(parsed_args) or self.code


class CordonGpu(_Command):
    """Keep new servers away from GPUs.

    All inventories of the GPU are reserved in Placement, and the agent
    refuses a bind that was scheduled before. Servers that have a part of the
    GPU keep it. The record of the GPU holds who cordoned it, when and why;
    the cordon lasts over restarts and reboots until "gpu uncordon". A GPU
    that is already cordoned on this host keeps its cordon. If cyborg.conf has
    no [placement], the next report of cyborg-agent writes to Placement.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        add_reason(parser)
        return parser

    def take_action(self, parsed_args):
        found = cordon_gpus(self.app.machine, parsed_args)
        return _NAMES, [_row(address, known) for address, known
                       in found.items()]


class UncordonGpu(_Command):
    """Offer GPUs to new servers again.

    Lifts the cordons that were made on this host, also those that the agent
    made because of errors. A GPU that is disabled in Cyborg stays cordoned:
    "openstack gpu uncordon" enables it. The exit code is 1 if a GPU is still
    cordoned.
    """

    def take_action(self, parsed_args):
        machine = self.app.machine
        machine.check_root('uncordon its GPUs')
        addresses = _chosen(machine, parsed_args.gpu)
        machine.open_placement()
        machine.draining = machine.withdrawn()
        left = {}
        for address in addresses:
            left[address] = machine.cordons.lift(address)
            machine.publish(address)
        for address, known in left.items():
            if known:
                self.code = 1
                terminal.say(
                    f'GPU {address} is still cordoned: {cordon.text(known)}. '
                    f'To enable it: openstack gpu uncordon {machine.hostname} '
                    f'{address}')
        return _NAMES, [_row(address, known) for address, known
                       in left.items()]


def add_reason(parser: argparse.ArgumentParser) -> None:
    """Add ``--reason``."""
    parser.add_argument(
        '--reason', metavar='TEXT', required=True,
        help='reason for the cordon, kept with it; one line of at '
             f'most {cordon.REASON_BYTES} bytes')


def cordon_gpus(machine: cmd_machine.Machine,
                parsed_args: argparse.Namespace
                ) -> dict[model.PciAddress, cordon.Cordons]:
    """Cordon the GPUs of a command line, and reserve their inventories.

    :param machine: the host of the command.
    :returns: the cordons of each GPU.
    :raises HostUnusable: if the user is not root, or there is no GPU.
    :raises InvalidValue, NoSuchGpu: if a GPU or the reason is not valid.
    :raises ChangeRefused: if the driver ignores a named GPU.
    :raises JournalError: if a record cannot be written.
    """
    reason = cordon.reason(parsed_args.reason)
    machine.check_root('cordon its GPUs')
    addresses = _chosen(machine, parsed_args.gpu)
    machine.open_placement()
    found = {}
    for address in addresses:
        # One GPU after the other: if a record cannot be written, the GPUs
        # before it are cordoned and reserved.
        found[address] = machine.cordons.add(address, _user(), reason)
        machine.publish(address)
    return found


def _row(address, known):
    return str(address), bool(known), columns.Names(map(str, known))


def _chosen(machine: cmd_machine.Machine, texts: list[str]
            ) -> list[model.PciAddress]:
    """Return the GPUs that the operator named, or all managed GPUs.

    A GPU that is lost is managed as long as it is cordoned or a server has a
    part of it: it may come back with the next restart of the host.
    """
    present = {gpu.address for gpu in machine.host.gpus}
    recorded = {
        address for address, record
        in store.of(machine.state_path).records().items()
        if record.cordons or (address not in present and record.has_server)}
    if not texts:
        found = recorded | {gpu.address for gpu in machine.host.gpus
                            if not machine.ignores(gpu)}
        if not found:
            raise exception.HostUnusable(reason='; '.join((
                'it has no NVIDIA GPU' + (
                    ' outside [gpu] ignored_devices' if present else ''),
                *machine.host.problems)))
        return sorted(found)
    found = []
    for text in texts:
        with contextlib.suppress(exception.InvalidPciAddress):
            address = model.PciAddress.parse(text)
            if address in recorded:
                found.append(address)
                continue
        gpu = machine.gpu(text)
        if machine.ignores(gpu):
            raise exception.ChangeRefused(
                gpu=gpu.address, reason='it is in [gpu] ignored_devices, so '
                'it is not offered')
        found.append(gpu.address)
    return found


def _user() -> str:
    """Return the user who runs the command; with sudo, the calling user."""
    if os.geteuid() == 0 and os.environ.get('SUDO_USER', '').isprintable():
        name = os.environ.get('SUDO_USER')
        if name:
            return name
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
