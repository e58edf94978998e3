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
"""``openstack gpu orphan list|clean``: leftovers of deleted servers."""

from __future__ import annotations

import time

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cloud import orphans
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.osc import base

_SETTLES = 60
"""Seconds after which a leftover cannot be a bind under way: Nova binds at
once, and oslo.messaging gives each step of a bind a minute."""


class ListOrphan(base.Lister):
    """List leftovers of deleted servers in the cloud.

    Leftovers are accelerator requests, allocations of GPUs and resource
    providers. Needs the role admin. The exit code is 1 if there is a leftover.
    """

    brief = ('Subject', 'What')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        _add_age(parser, 0)
        return parser

    def take_action(self, parsed_args):
        found = _find(self.cloud, parsed_args.older_than)
        self.code = int(bool(found))
        if found and parsed_args.formatter == 'table' and (
                not parsed_args.long):
            base.say('With --long the table shows what to do about each.')
        return (('Kind', 'Subject', 'Where', 'Server', 'Pins', 'Safe',
                 'What', 'What to do'), [
            (item.kind.value, item.subject, item.where,
             output.Optional(item.server), item.pins, item.safe, item.text,
             item.remedy) for item in found])


class CleanOrphan(base.CloudCommand):
    """Remove leftovers in the cloud that are safe to remove.

    These are accelerator requests without a server or of a deleted server, and
    allocations whose consumer is neither a server nor a migration. The command
    lists them first, and asks for confirmation unless --yes is given. It
    checks each again before it removes it. The exit code is 1 if something
    could not be removed.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        _add_age(parser, _SETTLES)
        parser.add_argument('--yes', action='store_true', help='do not ask '
                                                               'for '
                                                               'confirmation')
        return parser

    def take_action(self, parsed_args):
        found = _find(self.cloud, parsed_args.older_than)
        safe = [item for item in found if item.safe]
        for item in found:
            base.say(f'{item.subject}  {item.text}' + (
                '' if item.safe else f'\n  not removed; {item.remedy}'))
        if not safe:
            base.say('There is nothing to remove.')
        elif not parsed_args.yes and not output.agreed(
                f'Remove {len(safe)} of these?'):
            base.say('Nothing was removed.')
            self.code = 1
            return
        removed = sum([self._remove(item) for item in safe])
        self.code = int(removed < len(found))

    def _remove(self, item):
        """Remove an orphan and report the result; return whether it is gone.
        """
        try:
            with self.cloud.errors():
                orphans.remove(self.cloud, item)
        except exception.GpuDriverError as error:
            base.say(str(error))
            return False
        base.say(f'removed {item.kind.value} {item.subject}')
        return True


def _add_age(parser, default):
    parser.add_argument(
        '--older-than', metavar='<seconds>', default=default,
        type=moments.seconds(0, whole=True),
        help='check again after this time, and include only what both checks '
             'find, because Cyborg does not record the age of a request '
             '(default: %(default)s)')


def _find(cloud, seconds):
    found = orphans.find(orphans.read(cloud, base.show_progress))
    if not found or not seconds:
        return found
    base.say(f'Checking again in {seconds} seconds.')
    time.sleep(seconds)
    return orphans.lasting(found, orphans.find(
        orphans.read(cloud, base.show_progress)))
