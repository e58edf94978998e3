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

"""``cyborg-gpu --help`` and ``cyborg-gpu help``: the list of commands."""

from __future__ import annotations

import textwrap
from typing import TextIO

from cliff import app
from cliff import help as cliff_help

from cyborg_gpu_driver.cmd import summaries

_WIDTH = 79
_GAP = 4
"""Blanks before a command's name plus those after the longest name."""


class Help(cliff_help.HelpCommand):
    """Show the help of a command."""

    def take_action(self, parsed_args):
        if parsed_args.cmd:
            return super().take_action(parsed_args)
        show(self.app)
        return 0


def show(program: app.App) -> None:
    """Show what the program does and which commands it has.

    For this, cliff (4.17) would import and create every command, which takes
    longer than most commands run.
    """
    program.parser.print_help(program.stdout)
    program.stdout.write('\nCommands:\n')
    write_commands(program, program.stdout)


def write_commands(program: app.App, out: TextIO) -> None:
    """Write a line for each command: its name and what it does."""
    names = sorted(name for name, _ in program.command_manager)
    width = max(map(len, names)) + _GAP
    for name in names:
        out.write(textwrap.fill(
            _summary(program, name), _WIDTH,
            initial_indent=f'  {name:<{width - 2}}',
            subsequent_indent=' ' * width) + '\n')


def _summary(program, name):
    try:
        return summaries.SUMMARIES[name]
    except KeyError:
        # Commands of cliff and of other packages.
        command = program.command_manager.find_command(name.split())[0]
        return (command.__doc__ or '').strip().partition('\n')[0].rstrip('.')
