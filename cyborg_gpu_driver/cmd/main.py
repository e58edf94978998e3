# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu``: see and understand the GPUs of this host."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import logging
import os
import socket
import sys
import tempfile
from importlib import metadata
from typing import TYPE_CHECKING

import pbr.version
from cliff import app
from cliff import command
from cliff import commandmanager
from cliff import complete
from cliff import help as help_command
from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies

if TYPE_CHECKING:
    from cyborg_gpu_driver.cmd import context
    from cyborg_gpu_driver.cmd import view

NAMESPACE = 'cyborg_gpu_driver.command'
_PACKAGE = 'cyborg_gpu_driver'
_PROGRAM = 'cyborg-gpu'
_AGENT = 'cyborg-agent'
"""The program whose configuration files the commands read."""
_QUIET = frozenset({'stevedore', _PACKAGE})
_USAGE = 2


class _Description:
    """A command in the list of commands: its name and its description.

    :param entry: where the command is. Its module is read, not imported.
    """

    def __init__(self, entry: metadata.EntryPoint):
        self._entry = entry

    def load(self) -> type[command.Command]:
        spec = importlib.util.find_spec(self._entry.module)
        assert spec is not None and spec.origin is not None
        with open(spec.origin, encoding='utf-8') as stream:
            tree = ast.parse(stream.read())
        doc = next(ast.get_docstring(node) for node in tree.body
                   if isinstance(node, ast.ClassDef)
                   and node.name == self._entry.attr)
        return type(self._entry.attr, (command.Command,), {
            '__doc__': doc, 'take_action': None})


class Commands(commandmanager.CommandManager):
    """Imports only the command that runs.

    cliff (4.17) imports all commands to learn their names and to list them.
    This would import OpenStack's clients too, which few commands need.
    """

    def load_commands(self, namespace: str) -> None:
        self.group_list.append(namespace)
        self.commands.update(
            (entry.name, entry)
            for entry in metadata.entry_points(group=namespace))

    def __iter__(self):
        """Yield each command with what cliff needs to list it."""
        return ((name, _Description(entry)
                 if isinstance(entry, metadata.EntryPoint) else entry)
                for name, entry in self.commands.items())


class CyborgGpu(app.App):
    """The program; its commands are entry points."""

    NAME = _PROGRAM

    def __init__(self):
        super().__init__(
            description='Show and manage the NVIDIA GPUs of this host for '
                        'Cyborg, Placement and Nova.',
            version=version(),
            command_manager=Commands(NAMESPACE),
            deferred_help=True)
        self._records = None
        self._misused = False

    def build_option_parser(self, description, version,
                            argparse_kwargs=None):
        parser = super().build_option_parser(description, version,
                                             argparse_kwargs)
        parser.prog = _PROGRAM
        parser.add_argument(
            '--config-file', metavar='FILE', action='append', default=None,
            help='read the options from FILE; may be repeated (default: '
                 'those that cyborg-agent reads by itself)')
        parser.add_argument(
            '--simulate', metavar='NAME|FILE',
            help='use a simulated host instead of this machine; the records '
                 'in [gpu] state_path are neither read nor changed')
        parser.add_argument(
            '--state', metavar='FILE',
            help='file with the state of the simulated host; its records are '
                 'in the directory FILE.records')
        return parser

    def configure_logging(self):
        try:
            super().configure_logging()
        except OSError as error:
            raise exception.InvalidValue(
                what='--log-file', value=self.options.log_file,
                expected=f'cannot be written: {error.strerror}') from error
        if self.options.verbose_level < 2:
            for handler in logging.getLogger('').handlers:
                handler.addFilter(_is_worth_showing)

    def initialize_app(self, argv):
        if self.options.simulate and not self.options.state:
            # The simulated host and its records exist only as long as this
            # process.
            self._records = tempfile.TemporaryDirectory(prefix=_PROGRAM)

    @functools.cached_property
    def conf(self) -> cfg.ConfigOpts:
        """The options of the files and of the command line.

        A command reads them, so that it can report an error in its own way.
        """
        conf = _configuration(self.options)
        if self.options.state:
            _keep_records(conf, f'{self.options.state}.records')
        elif self._records is not None:
            _keep_records(conf, self._records.name)
        return conf

    @functools.cached_property
    def view(self) -> view.HostView:
        """The host, for a command that only reads a snapshot."""
        from cyborg_gpu_driver.cmd import view
        return view.HostView(self.conf)

    @functools.cached_property
    def machine(self) -> context.Machine:
        """The host, for a command that needs more than a snapshot."""
        from cyborg_gpu_driver.cmd import context
        return context.Machine(self.conf)

    def prepare_to_run_command(self, cmd):
        """Refuse a wrong configuration, even if the command does not need it.
        """
        if (getattr(cmd, 'checks_options', True)
                and not isinstance(cmd, (complete.CompleteCommand,
                                         help_command.HelpCommand))):
            policies.read(self.conf)

    def interact(self):
        """Show the help; without a command, cliff would open a shell."""
        self.parser.print_help(self.stderr)
        self.stderr.write('\nName a command:\n')
        for name, _entry in sorted(self.command_manager):
            self.stderr.write(f'  {name}\n')
        self._misused = True

    def run(self, argv):
        code = super().run(argv)
        return _USAGE if self._misused else code

    def close(self):
        """Remove the records that exist only for this process."""
        if self._records is not None:
            self._records.cleanup()


def _is_worth_showing(record):
    """Whether to show a log record to the user.

    The commands themselves print the warnings of this package's code.
    """
    return (record.levelno >= logging.ERROR
            or record.name.partition('.')[0] not in _QUIET)


def _configuration(options):
    """Return the options; the command line overrides the files."""
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.HostAddressOpt('host',
                                         default=socket.gethostname()))
    gpu_conf.register_opts(conf)
    files = options.config_file
    if files is None:
        files = cfg.find_config_files(project='cyborg', prog=_AGENT)
    try:
        conf([], project='cyborg', prog=_PROGRAM, default_config_files=files,
             default_config_dirs=cfg.find_config_dirs('cyborg', _AGENT))
    except (cfg.Error, OSError, UnicodeDecodeError) as error:
        raise exception.InvalidValue(
            what='--config-file', value=', '.join(files),
            expected=str(error)) from error
    if options.state and not options.simulate and not conf.gpu.simulate:
        raise exception.InvalidValue(
            what='--state', value=options.state,
            expected='only a simulated host has a state file; name one '
                     'with --simulate')
    if options.simulate is not None:
        if not options.simulate:
            raise exception.InvalidValue(
                what='--simulate', value='',
                expected='name a simulated host; leave the option out to use '
                         'this machine')
        conf.set_override('simulate', options.simulate, group='gpu')
    if options.simulate or options.state:
        # The file's state is that of the file's host.
        conf.set_override('simulate_state', options.state, group='gpu')
    return conf


def _keep_records(conf, directory):
    conf.set_override('state_path', os.path.abspath(directory), group='gpu')


def version() -> str:
    """Return the version of this build, with its git revision if known.

    When pbr builds a package from a clone, it writes the revision into the
    metadata (pbr.json, key git_version).
    """
    number = pbr.version.VersionInfo(_PACKAGE).release_string()
    try:
        revision = json.loads(metadata.distribution(_PACKAGE).read_text(
            'pbr.json') or '{}').get('git_version')
    except (metadata.PackageNotFoundError, ValueError):
        revision = None
    return f'{number} ({revision})' if revision else number


def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    if sys.stdout is None:
        sys.stderr.write(f'{_PROGRAM}: standard output is closed\n')
        return 1
    program = CyborgGpu()
    try:
        return program.run(sys.argv[1:] if argv is None else argv)
    except exception.HostUnusable as error:
        # Raised while the module of the command was imported.
        sys.stderr.write(f'{error}\n')
        return 1
    finally:
        program.close()


if __name__ == '__main__':
    sys.exit(main())
