# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu orphan clean``: leftovers of deleted servers."""

from __future__ import annotations

import time

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cloud import orphans
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.osc import base

_REMOVED = 'removed'
_SETTLES = 60
"""Seconds after which a leftover cannot be a bind under way: Nova binds at
once, and oslo.messaging gives each step of a bind a minute."""


class CleanOrphan(base.Lister):
    """Remove the leftovers of deleted servers in the cloud.

    Leftovers are accelerator requests without a server or of a deleted server,
    and allocations of GPUs whose consumer is neither a server nor a migration.
    The command asks for confirmation unless --yes is given, and checks each
    again before it removes it. With --dry-run, it only lists them. Needs the
    role admin. The exit code is 1 if a leftover remains.

    With --providers, the resource providers of what GPUs do not offer any more
    are leftovers, too. After they are removed, restart nova-compute on each
    host that the command names: it has them in its cache, and every boot there
    fails until the cache ends.
    """

    brief = ('Subject', 'What', 'Result')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--dry-run', action='store_true',
            help='list the leftovers, and remove nothing')
        parser.add_argument(
            '--older-than', metavar='<seconds>',
            type=moments.seconds(0, whole=True),
            help='check again after this time, and include only what both '
                 'checks find, because Cyborg does not record the age of a '
                 f'request (default: {_SETTLES}, with --dry-run 0)')
        parser.add_argument(
            '--providers', action='store_true',
            help='also remove resource providers that no GPU offers any more; '
                 'nova-compute of their hosts must be restarted right after')
        parser.add_argument('--yes', action='store_true',
                            help='do not ask for confirmation')
        return parser

    def take_action(self, parsed_args):
        seconds = parsed_args.older_than
        if seconds is None:
            seconds = 0 if parsed_args.dry_run else _SETTLES
        found = _find(self.cloud, seconds, parsed_args.providers)
        results = {}
        if not parsed_args.dry_run:
            results = self._clean(found, parsed_args.yes)
        self.code = int(any(results.get(item) != _REMOVED for item in found))
        return (('Kind', 'Subject', 'Where', 'Server', 'Pins', 'What',
                 'Result'), [
            (item.kind.value, item.subject, item.where,
             output.Optional(item.server), item.pins, item.text,
             output.Optional(results.get(item))) for item in found])

    def _clean(self, found, yes):
        """Remove the leftovers; return the result of each."""
        if not found:
            base.say('There is nothing to remove.')
            return {}
        if not yes:
            for item in found:
                base.say(f'{item.subject}  {item.text}')
            if not output.agreed(f'Remove these {len(found)}?'):
                base.say('Nothing was removed.')
                return {}
        results = {item: self._remove(item) for item in found}
        for host in orphans.to_restart(
                item for item in found if results[item] == _REMOVED):
            base.say(f'Restart nova-compute on {host} now: every boot there '
                     'fails while it has the removed providers in its cache.')
        return results

    def _remove(self, item):
        """Remove an orphan and return the result."""
        try:
            with self.cloud.errors():
                orphans.remove(self.cloud, item)
        except exception.GpuDriverError as error:
            base.say(str(error))
            return 'not removed'
        return _REMOVED


def _find(cloud, seconds, providers):
    found = orphans.find(orphans.read(cloud, base.show_progress), providers)
    if not found or not seconds:
        return found
    base.say(f'Checking again in {seconds} seconds.')
    time.sleep(seconds)
    return orphans.lasting(found, orphans.find(
        orphans.read(cloud, base.show_progress), providers))
