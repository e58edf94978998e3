# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu cordon``, ``uncordon`` and ``drain``."""

from __future__ import annotations

import time

from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cloud import cordons
from cyborg_gpu_driver.cloud import fleet
from cyborg_gpu_driver.cloud import moves
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.osc import base
from cyborg_gpu_driver.partition import cordon

_NAMES = ('GPU', 'Cordoned', 'Cordons')
WAIT = 180.0
"""In seconds. An agent reports every minute, and a report may just have begun.
"""
_ROUND = 3.0
"""Seconds between two reads of the GPUs' holders."""
_MOVE = 1800.0
"""Seconds that servers may take to move without --wait."""
_SETTLE = 60.0
"""Seconds after the move within which their accelerators must be released."""


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
        base.add_gpu(parser, or_all=True)
        _add_reason(parser)
        parser.add_argument(
            '--wait', metavar='<seconds>', type=moments.seconds(0),
            default=WAIT, help='how long to wait until the GPUs are reserved '
                               '(default: %(default)g)')
        return parser

    def take_action(self, parsed_args):
        found = _cordon_gpus(self.cloud, parsed_args)
        open_ = _wait_closed(self.cloud, parsed_args, found, parsed_args.wait)
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
        base.add_gpu(parser, or_all=True)
        return parser

    def take_action(self, parsed_args):
        left = _each(
            cordons.find(self.cloud, parsed_args.host, parsed_args.gpu),
            lambda gpu: cordons.open_(self.cloud, gpu))
        for address, known in left.items():
            if known:
                self.code = 1
                base.say(
                    f'GPU {address} is still cordoned: {cordon.text(known)}. '
                    f'To lift that, run on {parsed_args.host}: cyborg-gpu gpu '
                    f'uncordon {address}')
        return _NAMES, [_row(address, known)
                        for address, known in left.items()]


class DrainGpu(base.Lister):
    """Cordon a GPU, or all GPUs of a host, and list who still has them.

    With --shelve, servers that consent are shelved and offloaded. With
    --migrate, they are then unshelved, and run with a part of another GPU:
    Nova refuses to migrate servers with accelerators itself. Nova keeps the
    root disk of a shelved server in an image; memory and ephemeral disks are
    lost. A server that was shelved before stays shelved. A server consents by
    its metadata gpu_movable=true. The command names the servers that it will
    shelve, and asks for confirmation unless --yes is given. Needs the role
    admin. The exit code is 0 if all of the GPUs are free, and 1 if somebody
    still has a part of one.
    """

    brief = ('Server', 'Name', 'Status', 'GPU', 'Consents', 'Result')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        base.add_gpu(parser, or_all=True)
        _add_reason(parser)
        how = parser.add_mutually_exclusive_group()
        how.add_argument('--shelve', action='store_true',
                         help='shelve and offload the servers that consent')
        how.add_argument('--migrate', action='store_true',
                         help='shelve the servers that consent, and unshelve '
                              'them on other GPUs')
        base.add_consent(parser)
        parser.add_argument(
            '--wait', metavar='<seconds>', type=moments.seconds(0),
            help='how long to wait until the GPUs are free (default: '
                 f'{_MOVE:g} with --shelve or --migrate, otherwise 0)')
        return parser

    def take_action(self, parsed_args):
        addresses = _cordon_gpus(self.cloud, parsed_args)
        wait = parsed_args.wait or 0.0
        end = time.monotonic() + wait
        if _wait_closed(self.cloud, parsed_args, addresses,
                        max(wait, WAIT)):
            # An unshelved server might come back to an open GPU.
            self.code = 1
            return _holder_rows(self._holders(parsed_args, addresses), {})
        failed = {}
        found = self._holders(parsed_args, addresses)
        if parsed_args.shelve or parsed_args.migrate:
            failed = self._move(parsed_args, found)
            end = max(end, time.monotonic() + (
                _SETTLE if parsed_args.wait is None else 0.0))
        found = self._wait(parsed_args, addresses, end, failed)
        self.code = int(bool(found or failed))
        if not found:
            base.say('Free: ' + ', '.join(addresses))
        return _holder_rows(found, failed)

    def _holders(self, parsed_args, addresses):
        return cordons.holders(self.cloud, parsed_args.host, addresses)

    def _move(self, parsed_args, found):
        """Move the servers that consent; return why the others did not move.
        """
        seconds = _MOVE if parsed_args.wait is None else parsed_args.wait
        servers = [holder for holder in found if holder.project is not None]
        chosen = {holder.consumer: holder.name for holder in servers
                  if holder.consents or parsed_args.ignore_consent}
        failed = {holder.consumer: f'no {fleet.CONSENT}=true'
                  for holder in servers if holder.consumer not in chosen}
        shelved = {holder.consumer for holder in servers
                   if holder.status in moves.AWAY}
        if not base.may_move(
                {uuid: name for uuid, name in chosen.items()
                 if uuid not in shelved}, parsed_args.yes):
            return failed | dict.fromkeys(chosen, 'not confirmed')
        stuck = moves.shelve(
            self.cloud, chosen, [
                server for server in chosen if server not in shelved
            ] if parsed_args.migrate else [], seconds, base.say)
        for server, reason in stuck.items():
            base.say(f'server {server} was not moved: {reason}')
        return failed | stuck

    def _wait(self, parsed_args, addresses, end, failed):
        """Wait until the GPUs are free; return the remaining holders.

        :param failed: servers for which the command does not wait, unless
            --wait is given.
        """
        before = None
        while True:
            found = self._holders(parsed_args, addresses)
            left = end - time.monotonic()
            if not found or left <= 0 or parsed_args.wait is None and {
                    holder.consumer for holder in found} <= failed.keys():
                return found
            if len(found) != before:
                before = len(found)
                base.say(f'Waiting up to {left:.0f} s for {before} holder'
                         f'{"s" if before > 1 else ""} to release the GPUs')
            time.sleep(min(_ROUND, left))


def _add_reason(parser):
    """Add ``--reason``."""
    parser.add_argument(
        '--reason', metavar='<text>', required=True,
        help='reason for the cordon, kept with it; one line of at '
             f'most {cordon.REASON_BYTES} bytes')


def _cordon_gpus(cloud, parsed_args) -> dict[str, cordon.Cordons]:
    """Cordon the GPUs of a command line; return their cordons by address."""
    new = cordon.Cordon(
        cordon.Source.CYBORG, float(int(time.time())), cloud.user,
        cordon.reason(parsed_args.reason))
    return _each(cordons.find(cloud, parsed_args.host, parsed_args.gpu),
                 lambda gpu: cordons.close(cloud, gpu, new))


def _wait_closed(cloud, parsed_args, addresses, seconds) -> bool:
    """Wait until GPUs are closed; report and return whether any is still open.
    """
    open_ = cordons.wait_closed(
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
    return address, bool(known), output.Names(map(str, known))


def _holder_rows(found, failed):
    return ('Server', 'Name', 'Project', 'Status', 'GPU', 'Handles',
            'Consents', 'Result'), [
        (holder.consumer, output.Optional(holder.name),
         output.Optional(holder.project), output.Optional(holder.status),
         output.Names(holder.gpus), output.Names(holder.handles),
         holder.consents, output.Optional(_result(holder, failed)))
        for holder in found]


def _result(holder, failed):
    if holder.project is None:
        return 'no server; see "openstack gpu orphan clean --dry-run"'
    return failed.get(holder.consumer)
