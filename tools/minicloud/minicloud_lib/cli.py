# SPDX-License-Identifier: Apache-2.0

"""The command line of minicloud."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time

from minicloud_lib import cloud as cloud_module
from minicloud_lib import error
from minicloud_lib import nova
from minicloud_lib import settings as settings_module

DIRECTORY_VARIABLE = 'CYBORG_GPU_MINICLOUD'
_SHIPPED = pathlib.Path(__file__).resolve().parent.parent / 'hosts'
_HOSTS = ('gpu1', 'gpu2')
_GPU_CONFIG = _SHIPPED / 'gpu.conf'


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code.

    0 means success, 1 a failure, 3 that some service is not up.
    """
    options = _parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except error.MinicloudError as problem:
        print(f'minicloud: {problem}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('minicloud: interrupted; what runs is left so',
              file=sys.stderr)
        return 130


def _parser():
    parser = argparse.ArgumentParser(
        prog='minicloud', description='A small real OpenStack on this '
        'machine, with simulated GPUs, for tests.')
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        '--directory', metavar='DIR', type=pathlib.Path,
        help='where all of the cloud is; default: '
             f'${DIRECTORY_VARIABLE}, else minicloud in the state '
             'directory of the user')
    commands = parser.add_subparsers(required=True, metavar='COMMAND')

    def add(function, text):
        command = commands.add_parser(
            function.__name__.lstrip('_'), parents=[common], help=text,
            description=text[0].upper() + text[1:] + '.')
        command.set_defaults(run=function)
        return command

    start = add(_start, 'start everything that does not run yet')
    start.add_argument(
        '--host', action='append', metavar='NAME=MACHINE', dest='hosts',
        type=_host, help='a compute host and the simulated machine that it '
        'is, a YAML file or the name of one that the library has; may be '
        f'repeated; default: {" and ".join(_HOSTS)}, from {_SHIPPED}')
    start.add_argument(
        '--gpu-config', metavar='FILE', type=pathlib.Path,
        help='[gpu] and its policies, for all hosts; '
             f'default: {_GPU_CONFIG}')
    start.add_argument(
        '--base-port', metavar='PORT', type=int,
        help=f'first of {len(settings_module.PORTS)} ports; default: what '
             'is free at the first start')
    start.add_argument(
        '--baremetal', action='store_true', default=None,
        help='also Ironic, and the compute service of its nodes')
    start.add_argument(
        '--report-interval', metavar='SECONDS', type=_seconds,
        help='time between two reports of a cyborg-agent; default: '
             f'{settings_module.Settings.report_interval}, as in Cyborg')
    add(_stop, 'stop everything and keep what there is')
    add(_wipe, 'stop everything and remove all of it')
    status = add(_status, 'show which services are up')
    status.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table')
    for function, text in ((_restart, 'restart services'),
                           (_kill, 'kill services (SIGKILL)')):
        add(function, text).add_argument('services', nargs='+',
                                         metavar='SERVICE')
    log = add(_log, 'show the log of a service, or of a step of the start')
    log.add_argument('name', metavar='NAME')
    log.add_argument('--lines', metavar='N', type=int,
                     help='the last N lines only')
    return parser


def _host(text):
    name, equals, machine = text.partition('=')
    if not (name and equals and machine):
        raise argparse.ArgumentTypeError(
            f'{text!r} is not NAME=MACHINE, such as gpu1=t4x4')
    return name, machine


def _seconds(text):
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a number of seconds, such as 10')
    return int(text)


def _directory(options):
    directory = options.directory
    if directory is None and os.environ.get(DIRECTORY_VARIABLE):
        directory = pathlib.Path(os.environ[DIRECTORY_VARIABLE])
    if directory is None:
        state = os.environ.get('XDG_STATE_HOME')
        directory = (pathlib.Path(state) if state
                     else pathlib.Path.home() / '.local' / 'state'
                     ) / 'minicloud'
    return directory.absolute()


def _existing(options):
    directory = _directory(options)
    settings = settings_module.load(directory)
    if settings is None:
        raise error.MinicloudError(f'there is no minicloud in {directory}')
    return settings


def _start(options):
    cloud_module.check_packages()
    settings = settings_module.load(_directory(options))
    if settings is None:
        settings = _new(options)
    else:
        _refuse_changes(options, settings)
    with cloud_module.locked(settings):
        settings.save()
        began = time.monotonic()
        cloud_module.Cloud(settings, _say).start()
    print(f'minicloud: up after {time.monotonic() - began:.1f} s; '
          f'. {settings.directory}/openrc')


def _new(options):
    hosts = options.hosts or [(name, str(_SHIPPED / f'{name}.yaml'))
                              for name in _HOSTS]
    if options.baremetal and nova.BAREMETAL in dict(hosts):
        raise error.MinicloudError(
            f'--host {nova.BAREMETAL}: with --baremetal that is the compute '
            "service of Ironic's nodes; give another name")
    gpu_config = (options.gpu_config or _GPU_CONFIG).absolute()
    if not gpu_config.is_file():
        raise error.MinicloudError(
            f'--gpu-config {gpu_config}: there is no such file')
    return settings_module.new(
        _directory(options), {name: _machine(machine)
                              for name, machine in hosts},
        str(gpu_config), options.base_port, bool(options.baremetal),
        options.report_interval or settings_module.Settings.report_interval)


def _machine(text):
    """Return a file by its absolute path, because services run elsewhere."""
    path = pathlib.Path(text)
    if path.suffix != '.yaml' and len(path.parts) == 1:
        return text
    if not path.is_file():
        raise error.MinicloudError(
            f'--host: {text}: there is no such file')
    return str(path.absolute())


def _refuse_changes(options, settings):
    """:raises MinicloudError: if an option would change an existing cloud."""
    hosts = options.hosts and {name: _machine(machine)
                               for name, machine in options.hosts}
    for option, given, there in (
            ('--host', hosts, settings.hosts),
            ('--gpu-config', options.gpu_config and str(
                options.gpu_config.absolute()), settings.gpu_config),
            ('--base-port', options.base_port, settings.base_port),
            ('--baremetal', options.baremetal, settings.baremetal),
            ('--report-interval', options.report_interval,
             settings.report_interval)):
        if given is not None and given != there:
            raise error.MinicloudError(
                f'{option}: the cloud in {settings.directory} was made with '
                f'{there}; wipe it first, or give another --directory')


def _stop(options):
    _change(options, lambda cloud: cloud.stop())


def _wipe(options):
    if settings_module.load(_directory(options)) is None:
        print(f'minicloud: nothing in {_directory(options)}')
        return
    _change(options, lambda cloud: cloud.wipe())


def _restart(options):
    def restart(cloud):
        for name in options.services:
            cloud.restart(name)

    _change(options, restart)


def _kill(options):
    def kill(cloud):
        for name in options.services:
            cloud.kill(name)

    _change(options, kill)


def _change(options, act):
    settings = _existing(options)
    with cloud_module.locked(settings):
        act(cloud_module.Cloud(settings, _say))


def _status(options):
    rows = cloud_module.Cloud(_existing(options), _say).status()
    if options.format == 'json':
        print(json.dumps(rows, indent=2))
    else:
        width = max(len(str(row['service'])) for row in rows)
        for row in rows:
            print(f'{row["service"]:{width}}  {row["pid"] or "-":>7}  '
                  + ('up' if row['up'] else str(row['missing'])))
    return 0 if all(row['up'] for row in rows) else 3


def _log(options):
    settings = _existing(options)
    path = settings.log(options.name)
    try:
        lines = path.read_text(encoding='utf-8',
                               errors='replace').splitlines()
    except FileNotFoundError:
        there = sorted(log.stem for log in path.parent.glob('*.log'))
        raise error.MinicloudError(
            f'there is no log of {options.name!r}; there are '
            + ', '.join(there)) from None
    for line in lines[-options.lines if options.lines else 0:]:
        print(line)


def _say(line):
    print(line, flush=True)
