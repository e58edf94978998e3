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

"""``cyborg-gpu usage``: GPU-hours of this host."""

from __future__ import annotations

import collections

from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import table
from cyborg_gpu_driver.cmd.output import terminal
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.metrics.usage import ledger

_HOUR = 3600.0
_BY = ('profile', 'gpu', 'handle', 'server')


class ShowUsage(table.Lister):
    """Show who had which GPU, vGPU or slice from when to when.

    A vGPU or slice is counted from the end of its bind until Cyborg gives it
    back, to the second. A whole GPU is counted from the agent's report that
    first sees its server until the first report that does not. The records
    of this host are read; the GPUs and the cloud are not asked.
    """

    brief = ('profile', 'gpu', 'handle', 'server', 'since', 'until', 'hours',
             'count')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        moments.add_period(parser)
        parser.add_argument(
            '--by', choices=_BY,
            help='show the sum for each of these')
        return parser

    def take_action(self, parsed_args):
        start, end = moments.period(parsed_args.start, parsed_args.end)
        found = ledger.read(gpu_conf.state_path(self.app.conf), start, end)
        for text in found.missing:
            terminal.say(text)
        if parsed_args.by:
            return _sums(found.counted, parsed_args.by)
        return (('profile', 'gpu', 'handle', 'server', 'since', 'until',
                 'seconds', 'hours'), [
            (item.profile, str(item.gpu),
             columns.Optional(item.handle or None),
             columns.Optional(item.server or None),
             columns.Time(moments.of(item.since)),
             columns.Time(None if item.until is None
                          else moments.of(item.until)),
             round(seconds, 3), round(seconds / _HOUR, 4))
            for item, seconds in found.counted])


def _sums(found, name):
    counts, seconds = collections.Counter(), collections.Counter()
    for item, time in found:
        key = str(getattr(item, name))
        counts[key] += 1
        seconds[key] += time
    return ((name, 'count', 'seconds', 'hours'), [
        (columns.Optional(key or None), counts[key], round(seconds[key], 3),
         round(seconds[key] / _HOUR, 4)) for key in sorted(counts)])
