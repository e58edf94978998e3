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


"""The arguments, the files and the summary of ``tools/hardware-check``."""

from __future__ import annotations

import argparse
import os
import socket
import sys

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.support.hardware import compare
from cyborg_gpu_driver.support.hardware import document

_PROGRAM = 'hardware-check'
_ANONYMOUS = 'anonymous'
_NO_VALUE = '-'


def main(argv: list[str] | None = None) -> int:
    """Record this machine, or compare a record with a model.

    :returns: 0; 1 if a record and a model differ; 2 after an error.
    """
    options = _parser().parse_args(argv)
    try:
        if options.compare:
            return _compare(*options.compare)
        return _record(options)
    except (exception.GpuDriverError, OSError, cfg.Error) as error:
        _say(f'{_PROGRAM}: {error}')
        return 2


def _parser():
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description='Record everything that NVML and sysfs report about the '
                    'NVIDIA GPUs of this machine, and what this library '
                    'derives from it. Changes nothing.')
    parser.add_argument(
        '--output', metavar='FILE',
        help='the JSON file to write, - for standard output (default: '
             f'{_PROGRAM}-HOSTNAME.json)')
    parser.add_argument(
        '--anonymise', action='store_true',
        help='replace UUIDs, serial numbers and the name of the host')
    parser.add_argument(
        '--config-file', metavar='FILE', action='append', default=[],
        help='cyborg.conf with the policies by which the library describes '
             'the machine; may be repeated')
    parser.add_argument(
        '--simulate', metavar='NAME|FILE',
        help='use a simulated host instead of this machine')
    parser.add_argument(
        '--state', metavar='FILE', help='state of the simulated host')
    parser.add_argument(
        '--compare', metavar=('FILE', 'MODEL'), nargs=2,
        help='show where the boards recorded in FILE differ from MODEL of '
             'the simulator, such as h200-141, instead of recording')
    return parser


def _record(options):
    host = _ANONYMOUS if options.anonymise else socket.gethostname()
    conf = _configuration(options, host)
    found = document.collect(conf, platform.from_conf(conf),
                             options.anonymise)
    text = document.dumps(found)
    path = options.output or f'{_PROGRAM}-{host}.json'
    if path == '-':
        sys.stdout.write(text)
    else:
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)
    calls = found['nvml']
    failed = [record for record in calls if 'error' in record]
    _say(f'{len(found["sysfs"]["functions"])} NVIDIA functions in sysfs, '
         f'{len(calls)} NVML calls of which {len(failed)} answered with an '
         f'error' + (f'; written to {path}' if path != '-' else ''))
    if os.geteuid() and not found['simulated']:
        _say('Not run as root: NVML shows less about MIG to other users.')
    return 0


def _configuration(options, host):
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.HostAddressOpt('host', default=host))
    gpu_conf.register_opts(conf)
    conf([], project='cyborg', prog=_PROGRAM,
         default_config_files=options.config_file)
    if options.anonymise:
        conf.set_override('host', host)
    for option, value in (('simulate', options.simulate),
                          ('simulate_state', options.state)):
        if value:
            conf.set_override(option, value, group='gpu')
    return conf


def _compare(path, model):
    names, found = compare.compare(path, model)
    rows = [('gpu', 'fact', 'recorded', 'simulated')] + [
        (item.gpu, item.fact, _text(item.recorded), _text(item.simulated))
        for item in found]
    if found:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            sys.stdout.write('  '.join(
                cell.ljust(width) for cell, width
                in zip(row, widths, strict=True)).rstrip() + '\n')
    _say(f'{", ".join(names)} of {path} and the model {model}: '
         f'{len(found)} differences')
    return 1 if found else 0


def _text(value):
    if value is None:
        return _NO_VALUE
    if isinstance(value, list):
        return ' '.join(map(str, value))
    return str(value)


def _say(message):
    sys.stderr.write(message + '\n')
