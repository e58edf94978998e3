# SPDX-License-Identifier: Apache-2.0

"""Run all benchmarks and show their figures in one table.

The benchmarks run one after another, each in a separate process. The table
shows each figure beside its baseline and its floor, which were measured in
the same run. The progress messages of a benchmark appear on standard error.

usage: python benchmarks/run.py [-f table|json|rst] [--write DIRECTORY]
           [BENCHMARK...]

With --write, the program also writes the CSV files of the documentation: one
for each benchmark that has run, and two for all benchmarks. These two list
the figures that miss a bound, and when and where each benchmark has run.

Exits 1 if a limit is exceeded or a benchmark fails, and names the benchmarks
and figures. The other benchmarks run nevertheless.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

import figures  # noqa: E402
import tables  # noqa: E402

TIMEOUT = 900.0
"""Seconds for one benchmark."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description='Run all benchmarks and show their figures.')
    parser.add_argument('-f', '--format', choices=('table', 'json', 'rst'),
                        default='table')
    parser.add_argument('--write', type=_directory, metavar='DIRECTORY',
                        help='also write CSV files')
    parser.add_argument('names', nargs='*', metavar='BENCHMARK',
                        help=f'one of {", ".join(BENCHMARKS)}; '
                        'all unless given')
    options = parser.parse_args(argv)
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f'no benchmark {", ".join(sorted(unknown))}; there are '
                     f'{", ".join(BENCHMARKS)}')
    results = {}
    for name in options.names or BENCHMARKS:
        try:
            results[name] = run(name, BENCHMARKS[name])
        except RuntimeError as error:
            print(error, file=sys.stderr)
            results[name] = Result((), 1, 0.0)
        if options.write is not None and results[name].figures:
            tables.write(options.write, name, results[name].figures,
                         results[name].seconds)
    show(results, options.format)
    return report(results)


def _directory(text):
    path = pathlib.Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f'{text}: expected a directory')
    return path


@dataclasses.dataclass(frozen=True)
class Result:
    """The figures, exit code and duration of one benchmark."""

    figures: tuple[figures.Figure, ...]
    code: int
    """The exit code."""
    seconds: float


def run(name: str, benchmark: Benchmark) -> Result:
    """Run one benchmark.

    :raises RuntimeError: if it prints no figures, or does not end in time.
    """
    print(f'{name} ...', file=sys.stderr)
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', FOLDER / f'{name}.py',
             '-f', 'json', *benchmark.arguments], stdout=subprocess.PIPE,
            text=True, check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f'{name}.py has not ended within {TIMEOUT:.0f} s'
                           ) from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f'{name}.py ended with {done.returncode} and '
                           f'printed no JSON: {done.stdout[:200]!r}'
                           ) from None
    return Result(tuple(benchmark.read(answer)), done.returncode,
                  time.monotonic() - start)


def show(results: dict[str, Result], form: str) -> None:
    """Print all figures."""
    if form == 'json':
        json.dump({name: [dataclasses.asdict(figure)
                          for figure in result.figures]
                   for name, result in results.items()},
                  sys.stdout, indent=1)
        print()
        return
    for name, result in results.items():
        print(f'{name} ({result.seconds:.0f} s)')
        if form == 'rst':
            print('-' * 40 + '\n')
            print('\n'.join(rst(result.figures)))
        else:
            print('\n'.join(figures.lines(result.figures)))
        print()


def rst(measured: tuple[figures.Figure, ...]) -> Iterator[str]:
    """Yield the lines of a table in reStructuredText."""
    yield '.. list-table::'
    yield '   :header-rows: 1'
    yield ''
    for row in (figures.COLUMNS, *map(figures.cells, measured)):
        for index, cell in enumerate(row):
            yield f'   {"  " if index else "* "}- {cell}'.rstrip()


def report(results: dict[str, Result]) -> int:
    """Print what failed, and return the exit code."""
    failed = {name: [figure.name for figure in result.figures
                     if figure.is_exceeded]
              for name, result in results.items() if result.code}
    for name, exceeded in failed.items():
        print(f'{name}.py failed: {", ".join(exceeded) or "see above"}',
              file=sys.stderr)
    return 1 if failed else 0


def _figures(answer: Any) -> Iterator[figures.Figure]:
    for item in answer:
        yield figures.Figure(**item)


def _packing(answer: Any) -> Iterator[figures.Figure]:
    cases: dict[tuple, dict] = {}
    for case in answer['cases']:
        cases.setdefault((case['gpus'], case['load'], case['mix']), {})[
            case['policy']] = case
    for (gpus, load, mix), ways in cases.items():
        for policy, case in ways.items():
            if policy in ('first-fit', 'repacking'):
                continue
            for figure, unit in (('acceptance', '% accepted'),
                                 ('slice_acceptance', '% of slices')):
                yield figures.Figure(
                    f'{gpus} GPUs, load {load}, {mix}, {policy}',
                    100 * case[figure], unit,
                    baseline=100 * ways['first-fit'][figure],
                    floor=100 * ways['repacking'][figure], more=True)
    for item in answer['points']:
        name = f'{item["gpus"]} GPUs, {item["policy"]}'
        yield figures.Figure(
            f'{name} below {item["reference"]}', item['points'],
            '% of slices', limit=item['limit'])
        yield figures.Figure(f'{name}: moves an accepted request',
                             item['moves'], limit=item['most_moves'])


def _scheduling(answer: Any) -> Iterator[figures.Figure]:
    ways = {(case['mix'], case['way']): case for case in answer['cases']}
    for (mix, way), case in ways.items():
        if way == 'weigher':
            yield figures.Figure(
                f'{case["hosts"]} hosts, load {case["load"]}, {mix}',
                100 * case['acceptance'], '% accepted',
                baseline=100 * ways[mix, 'Nova alone']['acceptance'],
                floor=100 * ways[mix, 'repacking']['acceptance'],
                more=True)
        if way == 'weigher, isolation':
            yield figures.Figure(
                f'{case["hosts"]} hosts, {mix}, isolation of 3 projects',
                100 * case['acceptance'], '% accepted',
                baseline=100 * ways[mix, 'weigher']['acceptance'],
                more=True)
    yield from _elastic(answer['elastic'])


def _elastic(answer: Any) -> Iterator[figures.Figure]:
    ways = {(case['mix'], case['way']): case for case in answer['cases']}
    for (mix, way), case in ways.items():
        if way == 'elastic':
            yield figures.Figure(
                f'{case["gpus"]} elastic GPUs, load {case["load"]}, {mix}',
                100 * case['acceptance'], '% accepted',
                baseline=100 * ways[mix, 'static split']['acceptance'],
                floor=100 * ways[mix, 'clairvoyant split']['acceptance'],
                more=True)
    closed = answer['gap_closed']
    if closed is not None:
        yield figures.Figure(
            'elastic GPUs: gap to a clairvoyant split left',
            100 * (1 - closed), '% of the gap',
            limit=100 * (1 - answer['limit']))


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """How to run one of the programs and read what it prints."""

    read: Callable[[Any], Iterator[figures.Figure]] = _figures
    arguments: tuple[str, ...] = ()


BENCHMARKS = {
    'discover': Benchmark(),
    'operations': Benchmark(),
    'boots': Benchmark(),
    'providers': Benchmark(),
    'footprint': Benchmark(),
    'reports': Benchmark(),
    'cloud': Benchmark(),
    'weigher': Benchmark(),
    'packing': Benchmark(_packing, ('--seeds', '1', '--requests', '20000')),
    'scheduling': Benchmark(_scheduling, ('--seeds', '2')),
    'refusals': Benchmark(),
    'scrape': Benchmark(),
}


if __name__ == '__main__':
    sys.exit(main())
