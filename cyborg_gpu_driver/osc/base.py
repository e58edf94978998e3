# SPDX-License-Identifier: Apache-2.0

"""Base classes and functions of the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from osc_lib.command import command

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cmd import output


def say(text: str) -> None:
    """Print a line for the user to standard error."""
    print(text, file=sys.stderr)


def show_progress(done: int, total: int, what: str = 'hosts') -> None:
    """Update a progress line, if standard error is a terminal."""
    if sys.stderr.isatty():
        print(f'\r{done} of {total} {what} read', end='' if done < total
              else '\r\033[K', file=sys.stderr, flush=True)


def add_gpu(parser: argparse.ArgumentParser, or_all: bool = False) -> None:
    """Add ``HOST`` and ``GPU``.

    :param or_all: whether ``--all`` may take the place of ``GPU``.
    """
    parser.add_argument('host', metavar='HOST', help='name of the host')
    which = (parser.add_mutually_exclusive_group(required=True) if or_all
             else parser)
    which.add_argument('gpu', metavar='GPU', nargs='?' if or_all else None,
                       help='PCI address of the GPU, as "gpu list" shows it')
    if or_all:
        which.add_argument('--all', action='store_true',
                           help='all GPUs of the host')


def add_consent(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that shelves servers."""
    parser.add_argument(
        '--ignore-consent', action='store_true',
        help='also move servers whose owners have not set gpu_movable=true')
    parser.add_argument('--yes', action='store_true',
                        help='do not ask for confirmation')


def may_move(servers: Mapping[str, str | None], yes: bool) -> bool:
    """Name the servers to shelve; return whether the user agrees."""
    for uuid, name in servers.items():
        say(f'{uuid} {name or "-"}: loses its memory, GPU memory and '
            'ephemeral disks')
    return not servers or yes or output.agreed(
        f'Shelve {len(servers)} server{"s" if len(servers) > 1 else ""}?')


class CloudCommand(command.Command):
    """A command that asks a cloud.

    ``code``, which :meth:`take_action` may set, is the exit code.
    """

    code = 0

    @property
    def cloud(self) -> connection.Cloud:
        """The cloud that the user has logged in to."""
        return self.app.client_manager.gpu

    def run(self, parsed_args):
        with self.cloud.errors():
            return super().run(parsed_args) or self.code


class Lister(CloudCommand, output.Lister):
    """A list."""


class ShowOne(CloudCommand, output.ShowOne):
    """One thing with its fields, a line each."""
