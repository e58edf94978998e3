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

"""Options and steps that all measuring commands share.

The commands differ in where the applications run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cmd.interference import answers
from cyborg_gpu_driver.cmd.output import terminal
from cyborg_gpu_driver.interference import applications as apps
from cyborg_gpu_driver.interference import measuring
from cyborg_gpu_driver.interference import process
from cyborg_gpu_driver.interference import results

_TIMEOUT = 3600.0
_NOISE = 0.9
"""Slowdowns below this value are measurement errors."""


def add_options(parser: argparse.ArgumentParser,
                most: int = answers.REPEATS_MAX) -> None:
    """Add the options for applications, repeats, limits and results.

    :param most: the most repeats and the most warm-up runs.
    """
    parser.add_argument(
        '--file', metavar='FILE',
        help='YAML or JSON file with the applications; - is standard '
             'input')
    parser.add_argument(
        '--application', metavar='NAME=COMMAND', action='append',
        default=[],
        help='an application and its command, with quotes as in a shell; '
             'may be repeated')
    parser.add_argument(
        '--output', metavar='FILE', default=answers.FILE,
        help='file for the results (default: %(default)s)')
    parser.add_argument(
        '--force', action='store_true',
        help='replace the output file, instead of continuing from its '
             'results')
    answers.add_heat_map(parser)
    parser.add_argument(
        '--repeats', metavar='NUMBER', default=3,
        type=answers.number(1, most),
        help='measured runs of each step; the median counts (default: '
             '%(default)s)')
    parser.add_argument(
        '--warmups', metavar='NUMBER', default=1,
        type=answers.number(0, most),
        help='runs of each step before the measured ones; their times do not '
             'count (default: %(default)s)')
    parser.add_argument(
        '--timeout', metavar='SECONDS', default=_TIMEOUT,
        type=moments.seconds(0.1, 30 * 86400),
        help='how long each run may take (default: 3600)')
    parser.add_argument(
        '--oom-exit-code', metavar='CODE', action='append', default=[],
        type=answers.number(1, apps.EXIT_CODE_MAX),
        help='exit code of a command that ran out of memory; may be '
             'repeated')


def wanted(parsed_args: argparse.Namespace) -> results.Results:
    """Return what to measure, with the results that the output file has.

    :raises GpuDriverError: if the options or the file are wrong.
    """
    asked = results.Results(_applications(parsed_args), parsed_args.repeats,
                            parsed_args.warmups)
    path = parsed_args.output
    if parsed_args.force or not os.path.exists(path):
        return asked
    found = results.parse(*terminal.read_text(path))
    if not found.describes(asked):
        raise exception.InvalidValue(
            what='--output', value=path, expected='it has other '
            'applications, commands, repeats or warm-up runs; choose another '
            'file, or replace it with --force')
    return found


def run(found: results.Results, parsed_args: argparse.Namespace,
        runner: Callable[[process.Endings], measuring.Runner]) -> int:
    """Measure the steps that have no result, and print the progress.

    :param runner: creates the runner of the applications; a signal ends it.
    :returns: the exit code.
    :raises GpuDriverError: as :func:`.measuring.measure` and the runner.
    """
    total = len(found.steps())
    try:
        with process.Endings() as endings:
            measuring.measure(
                found, runner(endings), parsed_args.output,
                lambda step: answers.say_step(
                    total - len(found.open_steps()), total, step))
    except BaseException:
        answers.clear_line()
        _say_kept(found, total, parsed_args.output)
        raise
    answers.clear_line()
    answers.write_heat_map(parsed_args.heat_map, found)
    _say_noise(found)
    if found.open_steps():
        terminal.say('Some pairs failed. They count as not measured; the '
                     'same command tries them again.')
        return 1
    return 0


def _applications(parsed_args):
    found = apps.from_options(parsed_args.application, '--application')
    if parsed_args.file:
        found += apps.parse(*terminal.read_text(parsed_args.file))
    if not found:
        raise exception.InvalidValue(
            what='--application', value='',
            expected='name the applications with --application or --file')
    return apps.checked(found, frozenset(parsed_args.oom_exit_code))


def _say_noise(found):
    """Warn of impossible slowdowns: no application runs faster beside
    another one.
    """
    odd = sum(value is not None and value < _NOISE
              for row in found.slowdowns().values()
              for value in row.values())
    if odd:
        terminal.say(f'{odd} slowdowns are below {_NOISE}: the runs were too '
                     'short, or the machine did other work. Measure again '
                     'with --force.')


def _say_kept(found, total, path):
    done = total - len(found.open_steps())
    if done:
        terminal.say(f'{done} of {total} steps are in {path}; the same '
                     'command continues from there.')
