# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu gpu cordon|uncordon|prepare``."""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import context
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.record import store

_NAMES = ('address', 'cordoned', 'cordons')


def add_gpus(parser: argparse.ArgumentParser) -> None:
    """Add the GPUs of a command that changes them, which must be named."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        'gpu', metavar='GPU', nargs='*', default=[],
        help=f'a GPU, by {choice.WAYS}; for a GPU that is no longer '
             'present, give its full PCI address')
    which.add_argument(
        '--all', action='store_true',
        help='all GPUs of the host that are not in [gpu] ignored_devices')


class CordonGpu(output.Lister):
    """Keep new servers away from GPUs.

    All inventories of the GPU are reserved in Placement, and the agent
    refuses a bind that was scheduled before. The record of the GPU holds who
    cordoned it, when and why; the cordon lasts over restarts and reboots until
    "gpu uncordon". A GPU that is already cordoned on this host keeps its
    cordon. If cyborg.conf has no [placement], the next report of cyborg-agent
    writes to Placement. The servers that have a part of the GPU keep it:
    shelve, migrate or delete them, or use "openstack gpu drain", which waits
    for them.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        add_gpus(parser)
        parser.add_argument(
            '--reason', metavar='TEXT', required=True,
            help='reason for the cordon, kept with it; one line of at '
                 f'most {cordon.REASON_BYTES} bytes')
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine
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
        return _NAMES, [_row(address, known) for address, known
                        in found.items()]


class UncordonGpu(output.Lister):
    """Offer GPUs to new servers again.

    Lifts the cordons that were made on this host, also those that the agent
    made because of errors. A GPU that is disabled in Cyborg stays cordoned:
    "openstack gpu uncordon" enables it. The exit code is 1 if a GPU is still
    cordoned.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        add_gpus(parser)
        return parser

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
                output.say(
                    f'GPU {address} is still cordoned: {cordon.text(known)}. '
                    f'To enable it: openstack gpu uncordon {machine.hostname} '
                    f'{address}')
        return _NAMES, [_row(address, known) for address, known
                        in left.items()]


def _row(address, known):
    return str(address), bool(known), output.Names(map(str, known))


def _chosen(machine: context.Machine, texts: list[str]
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
        managed = recorded | {gpu.address for gpu in machine.host.gpus
                              if not machine.ignores(gpu)}
        if not managed:
            raise exception.HostUnusable(reason='; '.join((
                'it has no NVIDIA GPU' + (
                    ' outside [gpu] ignored_devices' if present else ''),
                *machine.host.problems)))
        return sorted(managed)
    chosen = []
    for text in texts:
        with contextlib.suppress(exception.InvalidValue):
            address = model.PciAddress.parse(text)
            if address in recorded:
                chosen.append(address)
                continue
        chosen.append(_named(machine, text).address)
    return chosen


def _named(machine: context.Machine, text: str) -> model.Gpu:
    """Return the GPU that the operator named, unless it is ignored."""
    gpu = machine.gpu(text)
    if machine.ignores(gpu):
        raise exception.ChangeRefused(
            gpu=gpu.address, reason='it is in [gpu] ignored_devices')
    return gpu


def _user() -> str:
    """Return the user who runs the command; with sudo, the calling user."""
    name = os.environ.get('SUDO_USER', '') if os.geteuid() == 0 else ''
    if name and name.isprintable():
        return name
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


# ``cyborg-gpu gpu prepare``: prepares idle GPUs as the agent does.


class PrepareGpu(output.Lister):
    """Make idle GPUs ready for their policy.

    Sets MIG mode, virtual functions, mixed-size mode and vGPU scheduler, and
    creates fixed vGPUs, in the order that NVIDIA's driver requires. GPUs in
    use are not changed. Exits 1 if a GPU does not match its policy at the end.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        add_gpus(parser)
        parser.add_argument(
            '--dry-run', action='store_true',
            help='show what remains to be done, and do nothing')
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine.for_changes()
        if not parsed_args.dry_run:
            machine.check_root()
        gpus = ([_named(machine, text) for text in parsed_args.gpu]
                or [gpu for gpu in machine.gpus if not machine.ignores(gpu)])
        act, done = (
            (machine.preparer.plan, 'to be made ready')
            if parsed_args.dry_run
            else (machine.preparer.prepare, 'made ready'))
        rows = [_prepared_row(gpu, act, done) for gpu in gpus]
        self.code = int(any(row[2] == _NOT_READY for row in rows))
        return ('address', 'steps', 'result', 'reason'), rows


_NOT_READY = 'not ready'


def _prepared_row(gpu, act, done):
    if condition.is_failed(gpu):
        # NVML cannot tell what such a GPU needs.
        steps, reason = [], condition.obstacle(gpu) or '; '.join(gpu.problems)
    else:
        outcome = act(gpu)
        steps, reason = outcome.done, outcome.reason
    result = done if steps else 'ready'
    return (str(gpu.address), output.Names(steps),
            _NOT_READY if reason else result, output.Optional(reason or None))
