# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu defragment``."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time

from cliff import columns as cliff_columns

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cloud import fleet
from cyborg_gpu_driver.cloud import moves
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.osc import base
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import moves as partition_moves

NO_PLAN = 3
"""The exit code if there is a profile without a plan."""
_SECONDS = 600.0
_MOVES = 2
_MOST = 3
"""Maximum of --moves: the cost of a search grows exponentially with it."""


class _Where(cliff_columns.FormattableColumn):
    """A GPU: two words in a table, a host and an address for programs."""

    def human_readable(self) -> str:
        return ' '.join(self._value or '-')

    def machine_readable(self) -> dict[str, str] | None:
        return self._value and self._value._asdict()


class Defragment(base.Lister):
    """Find or carry out the fewest moves of servers that make room.

    The command looks for a GPU on which the profile fits after a few servers
    have moved to other GPUs or other placements. The steps are "offload" (a
    shelved server that is not yet offloaded), "move" (shelve and unshelve
    a server) and "room" (the profile now fits there). "none" means that
    there is no such plan, "unknown" that the search reached its limit. Only
    active servers with one accelerator and the metadata gpu_movable=true
    move. vCPUs, memory and disks are not considered. The exit code is 0 if
    each profile has a plan or has room already, and 3 if one has no plan.
    With --apply, the command carries out the plan of one profile, checks each
    step, and stops with exit code 1 at the first one that fails. It names the
    servers that it will shelve, and asks first unless --yes is given.
    """

    brief = ('Profile', 'Step', 'Action', 'Server', 'From', 'To')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument('--plan', action='store_true',
                          help='show what would be done, and change nothing')
        what.add_argument('--apply', action='store_true',
                          help='carry out the plan; needs --profile or '
                               '--device-profile')
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            '--profile', metavar='PROFILE',
            help='profile that needs room (default: each)')
        which.add_argument(
            '--device-profile', metavar='DEVICE_PROFILE',
            help='device profile that needs room; it must ask for one '
                 'accelerator')
        parser.add_argument(
            '--host', metavar='HOST', action='append', default=[],
            help='consider this compute node only; may be repeated')
        parser.add_argument(
            '--moves', metavar='N', type=_moves, default=_MOVES,
            help=f'move at most N servers for a profile, 0 to {_MOST} '
                 f'(default: {_MOVES})')
        base.add_consent(parser)
        parser.add_argument(
            '--timeout', metavar='<seconds>', type=moments.seconds(1),
            default=_SECONDS,
            help='with --apply, how long to wait for each move and each '
                 f'report of an agent (default: {_SECONDS:g})')
        return parser

    def take_action(self, parsed_args):
        asking = parsed_args.profile, parsed_args.device_profile
        if parsed_args.apply and asking == (None, None):
            raise exception.InvalidValue(
                what='option', value='--apply',
                expected='it needs --profile or --device-profile')
        found = fleet.Snapshot(
            self.cloud, parsed_args.host, parsed_args.ignore_consent,
            base.say, base.show_progress)
        rows = []
        for name, asked in found.asked(*asking).items():
            wanted = found.fleet.want(asked)
            answer = (partition_moves.Answer(None, True) if wanted is None else
                      partition_moves.find(found.fleet.gpus, wanted,
                                           parsed_args.moves))
            if answer.plan is None:
                self.code = NO_PLAN
            elif not answer.plan.certain:
                base.say(f'{name}: whether the plan works depends on '
                         'placements that Placement does not show')
            if answer.plan is not None and parsed_args.apply:
                if not base.may_move(
                        {move.server: found.servers[move.server].name
                         for move in answer.plan.moves}, parsed_args.yes):
                    self.code = 1
                    base.say('Nothing was changed.')
                    continue
                answer = dataclasses.replace(answer, plan=self._apply(
                    parsed_args, asked, answer.plan))
            rows += [(name, *row) for row in _rows(answer, found)]
        return ('Profile', 'Step', 'Action', 'Server', 'From', 'To',
                'Server ID', 'Certain'), rows

    def _apply(self, parsed_args, asked, plan):
        """Carry out a plan, and return what was done."""
        return moves.Applying(
            self.cloud, asked, functools.partial(
                fleet.Snapshot, self.cloud, parsed_args.host,
                parsed_args.ignore_consent),
            cordon.Cordon(
                cordon.Source.CYBORG, float(int(time.time())),
                self.cloud.user, cordon.FOR_A_MOVE),
            parsed_args.timeout, base.say).run(plan)


def _moves(text):
    if text.isdecimal() and int(text) <= _MOST:
        return int(text)
    raise argparse.ArgumentTypeError(
        f'{text!r} is not valid: expected 0 to {_MOST}')


def _rows(answer, found):
    """Yield step, action, server, places, UUID and certainty of each step."""
    plan = answer.plan
    if plan is None:
        yield _row(1, 'none' if answer.complete else 'unknown')
        return
    origins = {holder.name: gpu.name for gpu in found.fleet.gpus
               for holder in gpu.holders}
    steps = [
        *(('offload', uuid, origins[uuid], None) for uuid in plan.idle),
        *(('move', move.server, move.origin, move.destination)
          for move in plan.moves),
        ('room', None, None, plan.gpu)]
    for number, (action, uuid, origin, to) in enumerate(steps, start=1):
        yield _row(number, action, uuid and found.servers[uuid], origin, to,
                   plan.certain)


def _row(number, action, server=None, origin=None, destination=None,
         certain=None):
    return (number, action, output.Optional(server and server.name),
            _Where(origin), _Where(destination),
            output.Optional(server and server.id),
            output.Optional(certain))
