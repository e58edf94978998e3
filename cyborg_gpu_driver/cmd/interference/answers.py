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

"""Files, options and rows that the interference commands share."""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import table
from cyborg_gpu_driver.cmd.output import terminal
from cyborg_gpu_driver.interference import heat_map
from cyborg_gpu_driver.interference import measuring
from cyborg_gpu_driver.interference import prediction
from cyborg_gpu_driver.interference import results

FILE = 'interference.json'
COLUMNS = ('Application', 'Beside', 'Slowdown', 'Seconds', 'MiB', 'GPU MiB',
           'Outcome', 'Problem')
BRIEF = COLUMNS[:-1]
REPEATS_MAX = 1000
_NEVER = 'does not fit'
_CLEAR = '\r\033[K'

Row = tuple[Any, ...]


class Lister(table.Lister):
    """A list; ``code`` is the exit code, which ``take_action`` may set."""

    code = 0

    def run(self, parsed_args):
        return super().run(parsed_args) or self.code


def add_heat_map(parser: argparse.ArgumentParser) -> None:
    """Add ``--heat-map``."""
    parser.add_argument(
        '--heat-map', metavar='FILE', type=_picture,
        help='also write a picture of the slowdowns, whose name ends in .svg '
             'or .png; needs matplotlib (default: none)')


def _picture(text: str) -> str:
    """Return a picture's file name; refuse a bad one before measuring."""
    if not text.endswith(tuple(f'.{form}' for form in heat_map.FORMATS)):
        raise argparse.ArgumentTypeError(
            f'{text!r} does not end in .svg or .png')
    try:
        heat_map.check()
    except exception.InvalidValue as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add the applications that run, and the options of the slowdowns."""
    parser.add_argument(
        'application', metavar='APPLICATION[=SECONDS]', nargs='+',
        help='an application and its run time alone (default: the median in '
             'the file); repeat it for several runs of one application')
    parser.add_argument(
        '--file', metavar='FILE', default=FILE,
        help='file with slowdowns, as "interference measure" writes it or as '
             '[gpu_weigher] interference_file names it; - is standard input '
             '(default: %(default)s)')
    parser.add_argument(
        '--memory', metavar='MIB', type=number(1, 1 << 30),
        help='memory of each GPU or slice; applications that need more '
             'together do not fit (default: only pairs that ran out of memory '
             'do not fit)')


def number(least: int, most: int) -> Callable[[str], int]:
    """Return the argparse type of an option that is a whole number."""
    def read(text: str) -> int:
        try:
            if least <= int(text) <= most:
                return int(text)
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a whole number from {least} to {most}')

    return read


def read(path: str) -> results.Results:
    """Read the results from a file, or from standard input (``-``).

    :raises GpuDriverError: with the file and what was expected.
    """
    return results.parse(*terminal.read_text(path))


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
    return (name, *map(columns.Optional, (
        beside, value, seconds and round(seconds, 3), runs.memory_mib,
        runs.gpu_memory_mib)), outcome, problem)


def write_heat_map(path: str | None, found: results.Results) -> None:
    """Write the picture, if a path is given.

    :raises InvalidValue: if the picture cannot be drawn or written.
    """
    if path:
        slowdowns = found.slowdowns()
        names = dict.fromkeys([
            *(item.name for item in found.applications), *slowdowns,
            *(beside for row in slowdowns.values() for beside in row)])
        measuring.write(path, heat_map.draw(
            list(names), slowdowns, path.rpartition('.')[2]))


def predictor(found: results.Results, memory_mib: int | None
              ) -> prediction.Predictor:
    """Return a predictor that uses the slowdowns of a file."""
    return prediction.Predictor(found.slowdowns(), memory_mib)


def jobs(found: results.Results, texts: Iterable[str],
         memory_mib: int | None) -> list[prediction.Job]:
    """Return the jobs that the operator named.

    :param memory_mib: the memory of a GPU; None to ignore memory.
    :raises InvalidValue: with the argument and what was expected.
    """
    return [_job(found, text, memory_mib) for text in texts]


def _job(found, text, memory_mib):
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
    return prediction.Job(
        name, _seconds(seconds, invalid) if equals
        else _alone(runs, invalid), runs.gpu_memory_mib)


def _seconds(text, invalid):
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise invalid(expected='expected NAME=SECONDS with a positive number')
    return found


def _alone(runs, invalid):
    if runs.median is None:
        raise invalid(expected='the file does not have its run time alone; '
                               'write it as NAME=SECONDS')
    return runs.median


def rounded(value: float) -> float | None:
    """Round a time or a slowdown for display; None if it is infinite."""
    return None if math.isinf(value) else round(value, 3)


def shown(value: float) -> columns.Optional:
    """Return the column value of a time or a slowdown."""
    return columns.Optional(rounded(value))


def outcome(value: float) -> str:
    """Return whether the applications fit, from a predicted value."""
    return _NEVER if math.isinf(value) else 'fits'


def say_step(done: int, total: int, step: results.Step) -> None:
    """Print the progress of a measurement.

    On a terminal, one line is updated. Otherwise each step has a line.

    :param done: the number of steps before this one, of ``total``.
    """
    name, beside = step
    text = (f'{done} of {total} measured, now {name} '
            + ('alone' if beside is None else f'beside {beside}'))
    if sys.stderr.isatty():
        print(f'{_CLEAR}{text}', end='', file=sys.stderr, flush=True)
    else:
        terminal.say(text)


def clear_line() -> None:
    """Remove the progress line from the terminal."""
    if sys.stderr.isatty():
        print(_CLEAR, end='', file=sys.stderr, flush=True)
