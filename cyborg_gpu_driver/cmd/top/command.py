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


"""``cyborg-gpu top``: the GPUs of this host and their servers, live."""

from __future__ import annotations

import argparse
import sys

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import table
from cyborg_gpu_driver.cmd.output import terminal
from cyborg_gpu_driver.cmd.top import frame as frames
from cyborg_gpu_driver.cmd.top import load as loads
from cyborg_gpu_driver.cmd.top import source
from cyborg_gpu_driver.cmd.top import text
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.partition import picture

_INTERVAL = 2
_LONGEST = 3600


class Top(table.Lister):
    """Show the GPUs, GPU instances and vGPUs of this host and their servers.

    The screen is refreshed every few seconds; press h for its keys. With
    --once, a table is printed. Servers come from the records of this host:
    where the agent does not know a server, the attach handle is shown. GPUs
    that are offered for passthrough are not opened, and nothing is changed.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--once', action='store_true',
            help='print a table and exit; the other output options need it')
        parser.add_argument(
            '--interval', metavar='SECONDS', default=_INTERVAL,
            type=moments.seconds(1, _LONGEST, whole=True),
            help='seconds between two readings, from 1 to '
                 f'{_LONGEST} (default: %(default)s)')
        return parser

    def run(self, parsed_args):
        if parsed_args.once:
            return super().run(parsed_args)
        _check_screen(parsed_args)
        # Only the screen needs curses, which some builds of Python lack.
        try:
            from cyborg_gpu_driver.cmd.top import live
        except ImportError as error:
            raise exception.NoTerminal(
                reason=f'this Python has no curses: {error}') from error
        live.run(source.Source(self.app.view).read, parsed_args.interval)
        return 0

    def take_action(self, parsed_args):
        self._frame = source.Source(self.app.view).read()
        for message in self._frame.messages:
            terminal.say(message)
        return _NAMES, [row for block in self._frame.blocks
                        for row in _rows(block)]

    def produce_output(self, parsed_args, column_names, data):
        if (parsed_args.formatter != 'table' or parsed_args.long
                or parsed_args.columns):
            return super().produce_output(parsed_args, column_names, data)
        stdout = self.app.stdout
        width = table.line_width(parsed_args.max_width, stdout)
        cut = picture.pens_for(getattr(stdout, 'encoding', None)).cut
        for line in (text.Line(text.heading(width, cut)),
                     *text.lines(self._frame.blocks, width, cut)):
            stdout.write(line.text.rstrip() + '\n')
        return 0


_NAMES = ('index', 'address', 'kind', 'name', 'mode', 'state', 'remarks',
          'utilization_percent', 'memory_used_mib', 'memory_mib',
          'gpu_instance_id', 'start', 'size', 'function', 'server', 'handle',
          'arq')


def _rows(block: frames.Block):
    """Yield a row for the GPU, then one for each of its parts."""
    gpu = block.gpu
    about = columns.Optional(block.index), str(gpu.address)
    mode = columns.Optional(block.mode and block.mode.value)
    nothing = columns.Optional(None)
    yield (*about, frames.Kind.GPU.value, columns.Optional(gpu.model), mode,
           condition.state(gpu), columns.Names(block.remarks),
           *_load(block.load, gpu.memory_mib), *[nothing] * 7)
    for part in block.parts:
        place = part.placement
        yield (*about, part.kind.value, part.name, mode, part.state,
               columns.Names(()), *_load(part.load, part.memory_mib),
               *map(columns.Optional, (
                   part.instance_id, place and place.start,
                   place and place.size,
                   part.function and str(part.function), part.server,
                   part.handle, part.arq)))


def _load(load: loads.Load, memory_mib: int | None):
    return map(columns.Optional, (load.percent, load.memory_used_mib,
                                  load.memory_mib or memory_mib))


def _check_screen(parsed_args: argparse.Namespace) -> None:
    """Check the options and the terminal before the screen opens.

    :raises InvalidValue: names an option that needs --once.
    :raises NoTerminal: if standard input or output is not a terminal.
    """
    for option, value in (
            ('--format', parsed_args.formatter != 'table'
             and parsed_args.formatter),
            ('--long', parsed_args.long and 'True'),
            ('--column', ', '.join(parsed_args.columns))):
        if value:
            raise exception.InvalidValue(what=option, value=value,
                                         expected='it needs --once')
    for name, stream in (('input', sys.stdin), ('output', sys.stdout)):
        if not stream.isatty():
            raise exception.NoTerminal(
                reason=f'standard {name} is not a terminal')
