# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu interference``: how applications on one GPU slow each other."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.nvml import process as nvml_process
from cyborg_gpu_driver.interference import applications as apps
from cyborg_gpu_driver.interference import measuring
from cyborg_gpu_driver.interference import prediction
from cyborg_gpu_driver.interference import process
from cyborg_gpu_driver.interference import results

FILE = 'interference.json'
COLUMNS = ('Application', 'Beside', 'Slowdown', 'Seconds', 'GPU MiB',
           'Outcome', 'Problem')
BRIEF = COLUMNS[:-1]
REPEATS_MAX = 1000
_NEVER = 'does not fit'
_TIMEOUT = 3600.0
_NOISE = 0.9
"""Slowdowns below this value are measurement errors."""
_MIB = 1 << 20
_PREDICTED = ('Application', 'Alone', 'Slowdown', 'End', 'Fit')
_PLANNED = ('Placement', 'GPU', 'Applications', 'End', 'Makespan')
_GPUS_MAX = 64
_JOBS_MAX = 200

Row = tuple[Any, ...]


def _number(least: int, most: int) -> Callable[[str], int]:
    """Return the argparse type of an option that is a whole number."""
    def read(text: str) -> int:
        if (text.isascii() and text.isdigit() and len(text) < 10
                and least <= int(text) <= most):
            return int(text)
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a whole number from {least} to {most}')

    return read


def rows(found: results.Results) -> list[Row]:
    """Return a row for each application alone, then one for each pair."""
    slowdowns = found.slowdowns()
    steps = dict.fromkeys([*found.runs, *(
        (name, beside) for name, row in slowdowns.items() for beside in row)])
    return [_row(found, slowdowns, *step) for step in steps]


def _row(found, slowdowns, name, beside):
    runs = found.runs.get((name, beside), results.Runs())
    value = slowdowns.get(name, {}).get(beside)
    outcome, problem = runs.outcome.value, runs.problem
    if beside is not None and value is None:
        if beside in slowdowns.get(name, {}):
            outcome = results.Outcome.OUT_OF_MEMORY.value
        elif runs.outcome is results.Outcome.MEASURED:
            problem = (
                f'the slowdown {found.ratio(name, beside)} is not from '
                f'{results.LEAST} to {results.MOST}: the runs are too short')
    seconds = runs.median
    return (name, *map(output.Optional, (
        beside, value, seconds and round(seconds, 3),
        runs.gpu_memory_mib)), outcome, problem)


def _job(found: results.Results, text: str, memory_mib: int | None
         ) -> prediction.Job:
    """Return the job that the operator named.

    :param memory_mib: the memory of a GPU; None to ignore memory.
    """
    name, equals, seconds = text.partition('=')
    invalid = functools.partial(exception.InvalidValue, what='application',
                                value=text)
    known = {name for step in found.runs for name in step if name} | {
        name for name, row in found.slowdowns().items()} | {
        beside for row in found.slowdowns().values() for beside in row}
    if name not in known:
        raise invalid(expected='expected an application in the file: '
                               + (', '.join(sorted(known)) or 'it has none'))
    runs = found.runs.get((name, None), results.Runs())
    if memory_mib is not None and runs.gpu_memory_mib is None:
        raise invalid(expected='the file does not say how much memory of a '
                               'GPU it needs; leave --memory out')
    try:
        alone = float(seconds) if equals else runs.median
    except ValueError:
        alone = math.nan
    if alone is None:
        raise invalid(expected='the file does not have its run time alone; '
                               'write it as NAME=SECONDS')
    if not 0 < alone < math.inf:
        raise invalid(expected='expected NAME=SECONDS with a positive number')
    return prediction.Job(name, alone, runs.gpu_memory_mib)


def _shown(value: float) -> output.Optional:
    """Return the column value of a time or a slowdown."""
    return output.Optional(None if math.isinf(value) else round(value, 3))


def add_options(parser: argparse.ArgumentParser,
                most: int = REPEATS_MAX) -> None:
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
        '--output', metavar='FILE', default=FILE,
        help='file for the results (default: %(default)s)')
    parser.add_argument(
        '--force', action='store_true',
        help='replace the output file, instead of continuing from its '
             'results')
    parser.add_argument(
        '--repeats', metavar='NUMBER', default=3,
        type=_number(1, most),
        help='measured runs of each step; the median counts (default: '
             '%(default)s)')
    parser.add_argument(
        '--warmups', metavar='NUMBER', default=1,
        type=_number(0, most),
        help='runs of each step before the measured ones; their times do not '
             'count (default: %(default)s)')
    parser.add_argument(
        '--timeout', metavar='SECONDS', default=_TIMEOUT,
        type=moments.seconds(0.1, 30 * 86400),
        help='how long each run may take (default: 3600)')
    parser.add_argument(
        '--oom-exit-code', metavar='CODE', action='append', default=[],
        type=_number(1, apps.EXIT_CODE_MAX),
        help='exit code of a command that ran out of memory; may be '
             'repeated')


def wanted(parsed_args: argparse.Namespace) -> results.Results:
    """Return what to measure, with the results that the output file has."""
    asked = results.Results(_applications(parsed_args), parsed_args.repeats,
                            parsed_args.warmups)
    path = parsed_args.output
    if parsed_args.force or not os.path.exists(path):
        return asked
    found = results.parse(*output.read_text(path))
    if not found.describes(asked):
        raise exception.InvalidValue(
            what='--output', value=path, expected='it has other '
            'applications, commands, repeats or warm-up runs; choose another '
            'file, or replace it with --force')
    return found


def measure(found: results.Results, parsed_args: argparse.Namespace,
            runner: Callable[[process.Endings], measuring.Runner]) -> int:
    """Measure the steps that have no result, and print the progress.

    :param runner: creates the runner of the applications; a signal ends it.
    :returns: the exit code.
    """
    total = len(found.steps())

    def say(step: results.Step) -> None:
        name, beside = step
        output.say(f'{total - len(found.open_steps())} of {total} measured, '
                   f'now {name} '
                   + ('alone' if beside is None else f'beside {beside}'))

    try:
        with process.Endings() as endings:
            measuring.measure(found, runner(endings), parsed_args.output, say)
    except BaseException:
        done = total - len(found.open_steps())
        if done:
            output.say(f'{done} of {total} steps are in {parsed_args.output}; '
                       'the same command continues from there.')
        raise
    # No application runs faster beside another one.
    odd = sum(value is not None and value < _NOISE
              for row in found.slowdowns().values()
              for value in row.values())
    if odd:
        output.say(f'{odd} slowdowns are below {_NOISE}: the runs were too '
                   'short, or the machine did other work. Measure again '
                   'with --force.')
    if found.open_steps():
        output.say('Some pairs failed. They count as not measured; the '
                   'same command tries them again.')
        return 1
    return 0


def _applications(parsed_args):
    found = apps.from_options(parsed_args.application, '--application')
    if parsed_args.file:
        found += apps.parse(*output.read_text(parsed_args.file))
    if not found:
        raise exception.InvalidValue(
            what='--application', value='',
            expected='name the applications with --application or --file')
    return apps.checked(found, frozenset(parsed_args.oom_exit_code))


class MeasureInterference(output.Lister):
    """Measure how much applications slow each other down.

    Runs each command alone, then beside each other command and beside a second
    run of itself. The commands run on this host as the calling user, without a
    shell. Writes the run times and the slowdowns after each pair; if it is
    interrupted, the same command continues from there. nova-scheduler reads
    the file through [gpu_weigher] interference_file.
    """

    brief = BRIEF

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        add_options(parser)
        return parser

    def take_action(self, parsed_args):
        found = wanted(parsed_args)
        here = self._machine(parsed_args.timeout)
        self.code = measure(
            found, parsed_args,
            lambda endings: dataclasses.replace(here, endings=endings))
        return COLUMNS, rows(found)

    def _machine(self, timeout):
        """Return this machine, with its GPUs if NVML answers."""
        nvml = self.app.view.platform.nvml
        try:
            addresses = nvml.addresses()
            smallest = nvml_process.smallest(nvml, addresses)
        except exception.GpuDriverError as error:
            output.say(f'The memory of GPUs is not measured: {error}')
            return process.Machine(timeout)
        return process.Machine(
            timeout, functools.partial(_used, nvml, addresses),
            smallest and smallest // _MIB)


def _used(nvml, addresses, pids):
    try:
        return nvml_process.memory(nvml, addresses, pids)
    except exception.GpuDriverError:
        return None


class PredictInterference(output.Lister):
    """Predict how long applications run together on GPUs.

    On one GPU, slowdown applies while all of the applications run: 1 plus what
    each other one adds. End is when the application ends, in seconds; the
    remaining ones then run faster. With --gpus, the command places the
    applications on GPUs so that all end as early as possible, and compares
    this placement to pack (the most memory first, onto the fullest GPU where
    it fits) and spread (the longest first, onto the GPU with the least to do).
    Without an application, the command shows the measured slowdowns: each
    application alone first, with nothing in Beside, and then the pairs.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'application', metavar='APPLICATION[=SECONDS]', nargs='*',
            help='an application and its run time alone (default: the median '
                 'in the file); repeat it for several runs of one application')
        parser.add_argument(
            '--file', metavar='FILE', default=FILE,
            help='file with slowdowns, as "interference measure" writes it or '
                 'as [gpu_weigher] interference_file names it; - is standard '
                 'input (default: %(default)s)')
        parser.add_argument(
            '--memory', metavar='MIB', type=_number(1, 1 << 30),
            help='memory of each GPU or slice; applications that need more '
                 'together do not fit (default: only pairs that ran out of '
                 'memory do not fit)')
        parser.add_argument(
            '--gpus', metavar='NUMBER', type=_number(1, _GPUS_MAX),
            help='place the applications on this number of GPUs, or of slices '
                 'of one size (default: all run on one GPU)')
        return parser

    def take_action(self, parsed_args):
        found = results.parse(*output.read_text(parsed_args.file))
        if not parsed_args.application:
            self.brief = BRIEF
            return COLUMNS, rows(found)
        if len(parsed_args.application) > _JOBS_MAX:
            raise exception.InvalidValue(
                what='number of applications',
                value=len(parsed_args.application),
                expected=f'expected at most {_JOBS_MAX}')
        wanted_jobs = [_job(found, text, parsed_args.memory)
                       for text in parsed_args.application]
        predicted = prediction.Predictor(found.slowdowns(),
                                         parsed_args.memory)
        if parsed_args.gpus is not None:
            return _PLANNED, _plans(wanted_jobs, parsed_args.gpus, predicted)
        ends = predicted.ends(wanted_jobs)
        output.say('They do not fit together on one GPU.'
                   if math.isinf(max(ends))
                   else f'All have ended after {max(ends):.1f} s.')
        return _PREDICTED, [
            (job.application, round(job.seconds, 3), _shown(slowdown),
             _shown(end), _NEVER if math.isinf(end) else 'fits')
            for job, slowdown, end in zip(
                wanted_jobs, predicted.slowdowns(wanted_jobs), ends,
                strict=True)]


def _plans(wanted_jobs: list[prediction.Job], gpus: int,
           predicted: prediction.Predictor) -> list[Row]:
    plans = prediction.compare(wanted_jobs, gpus, predicted)
    if math.isinf(plans[0].makespan):
        output.say('No placement that fits was found.')
    return [(plan.name, index,
             output.Names([job.application for job in group]),
             _shown(predicted.makespan(group)), _shown(plan.makespan))
            for plan in plans for index, group in enumerate(plan.groups)]
