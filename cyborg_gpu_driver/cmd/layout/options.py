# SPDX-License-Identifier: Apache-2.0

"""Options of the ``layout`` commands.

The options and environment variables of mig-parted work too, with one
exception: ``--config-file`` is an option of this program that names
cyborg.conf. Here ``-f`` names a file, as in mig-parted; in other commands it
is the format of the output.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import yaml
from cliff import command

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.partition.layout import file as layout_file

CONFIG_FILE = 'MIG_PARTED_CONFIG_FILE'
SELECTED = 'MIG_PARTED_SELECTED_CONFIG'
HOOKS_FILE = 'MIG_PARTED_HOOKS_FILE'
SKIP_RESET = 'MIG_PARTED_SKIP_RESET'
MODE_ONLY = 'MIG_PARTED_MODE_CHANGE_ONLY'
CHECKPOINT = 'MIG_PARTED_CHECKPOINT_FILE'
LABEL = 'MIG_PARTED_CONFIG_LABEL'

_TRUE = frozenset({'1', 't', 'true'})


class LayoutCommand(command.Command):
    """A command of the group."""

    formats: tuple[str, ...] = ('text', 'json', 'yaml')
    """The values of ``-o``; the first is the default."""

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '-o', '--format', '--output-format', dest='output_format',
            choices=self.formats, default=self.formats[0],
            help='format of the output (default: %(default)s)')
        return parser

    def write(self, text: str) -> None:
        """Write one answer to standard output."""
        self.app.stdout.write(text if text.endswith('\n') else text + '\n')

    def write_value(self, value: Any, output_format: str) -> None:
        """Write a plain value in a format for programs."""
        if output_format == 'json':
            self.write(json.dumps(value, indent=2))
        else:
            self.write(yaml.safe_dump(value, sort_keys=False))


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add ``-f``, ``--layout-file``."""
    parser.add_argument(
        '-f', '--layout-file', metavar='FILE',
        default=os.environ.get(CONFIG_FILE),
        help="layout file in mig-parted's format; - is standard input "
             f'(default: ${CONFIG_FILE})')


def add_entry(parser: argparse.ArgumentParser) -> None:
    """Add ``-f`` and ``-c`` for one entry of a layout file."""
    add_file(parser)
    parser.add_argument(
        '-c', '--selected-config', metavar='NAME',
        default=os.environ.get(SELECTED),
        help='entry of the file; may be left out if there is only one '
             f'(default: ${SELECTED})')


def add_mode_only(parser: argparse.ArgumentParser) -> None:
    """Add ``-m``, which limits the command to MIG mode."""
    parser.add_argument(
        '-m', '--mode-only', action='store_true', default=_flag(MODE_ONLY),
        help='change the MIG mode only; instances are kept, unless MIG mode '
             'is turned off, which destroys idle ones')


def add_flag(parser: argparse.ArgumentParser, *names: str, variable: str,
             text: str) -> None:
    """Add a flag that an environment variable can set too."""
    parser.add_argument(*names, action='store_true',
                        default=_flag(variable), help=text)


def read_file(parsed_args: argparse.Namespace) -> layout_file.LayoutFile:
    """Read the layout file that the operator named.

    :raises InvalidValue: if no file is named, or it cannot be read.
    :raises DocumentError: if the file is malformed.
    """
    name = parsed_args.layout_file
    if not name:
        raise exception.InvalidValue(
            what='--layout-file', value='',
            expected='name a layout file, or - for standard input')
    text, source = output.read_text(name)
    return layout_file.LayoutFile.parse(text, source)


def _flag(variable):
    return os.environ.get(variable, '').lower() in _TRUE
