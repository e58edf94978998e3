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

"""``openstack gpu drain``."""

from __future__ import annotations

import time

from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cloud.cordons import drain
from cyborg_gpu_driver.cloud.moves import fleet
from cyborg_gpu_driver.cloud.moves import shelving
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.osc import base
from cyborg_gpu_driver.osc.cordons import cordon

_ROUND = 3.0
"""Seconds between two reads of the GPUs' holders."""
_MOVE = 1800.0
"""Seconds that servers may take to move without --wait."""
_SETTLE = 60.0
"""Seconds after the move within which their accelerators must be released."""


class DrainGpu(base.Lister):
    """Cordon a GPU, or all GPUs of a host, and list who still has them.

    With --shelve, servers that consent are shelved and offloaded. With
    --migrate, they are then unshelved, and run with a part of another GPU:
    Nova refuses to migrate servers with accelerators itself. Nova keeps the
    root disk of a shelved server in an image; memory and ephemeral disks are
    lost. A server that was shelved before stays shelved. A server consents by
    its metadata gpu_movable=true, or by --yes. Needs the role admin. The exit
    code is 0 if all of the GPUs are free, and 1 if somebody still has a part
    of one.
    """

    brief = ('Server', 'Name', 'Status', 'GPU', 'Consents', 'Result')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        cordon.add_gpus(parser)
        cordon.add_reason(parser)
        how = parser.add_mutually_exclusive_group()
        how.add_argument('--shelve', action='store_true',
                         help='shelve and offload the servers that consent')
        how.add_argument('--migrate', action='store_true',
                         help='shelve the servers that consent, and unshelve '
                              'them on other GPUs')
        parser.add_argument(
            '--yes', action='store_true',
            help='treat all servers as consenting, whatever their metadata')
        parser.add_argument(
            '--wait', metavar='<seconds>', type=moments.seconds(0),
            help='how long to wait until the GPUs are free (default: '
                 f'{_MOVE:g} with --shelve or --migrate, otherwise 0)')
        return parser

    def take_action(self, parsed_args):
        addresses = cordon.cordon_gpus(self.cloud, parsed_args)
        wait = parsed_args.wait or 0.0
        end = time.monotonic() + wait
        if cordon.wait_closed(self.cloud, parsed_args, addresses,
                              max(wait, cordon.WAIT)):
            # An unshelved server might come back to an open GPU.
            self.code = 1
            return _rows(self._holders(parsed_args, addresses), {})
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
        return _rows(found, failed)

    def _holders(self, parsed_args, addresses):
        return drain.read(self.cloud, parsed_args.host, addresses)

    def _move(self, parsed_args, found):
        """Move the servers that consent; return why the others did not move.
        """
        seconds = _MOVE if parsed_args.wait is None else parsed_args.wait
        servers = [holder for holder in found if holder.project is not None]
        chosen = [holder.consumer for holder in servers
                  if holder.consents or parsed_args.yes]
        failed = {holder.consumer: f'no {fleet.CONSENT}=true'
                  for holder in servers if holder.consumer not in chosen}
        shelved = {holder.consumer for holder in servers
                   if holder.status in shelving.AWAY}
        stuck = shelving.move(
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


def _rows(found, failed):
    return ('Server', 'Name', 'Project', 'Status', 'GPU', 'Handles',
            'Consents', 'Result'), [
        (holder.consumer, columns.Optional(holder.name),
         columns.Optional(holder.project), columns.Optional(holder.status),
         columns.Names(holder.gpus), columns.Names(holder.handles),
         holder.consents, columns.Optional(_result(holder, failed)))
        for holder in found]


def _result(holder, failed):
    if holder.project is None:
        return 'no server; see "openstack gpu orphan list"'
    return failed.get(holder.consumer)
