# SPDX-License-Identifier: Apache-2.0

"""The file with measured slowdowns. Pure.

The weigher (``[gpu_weigher] interference_file``) reads only the key
``slowdown``. All other keys say how the numbers were measured.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import statistics
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver import schema
from cyborg_gpu_driver.interference import applications as apps
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml

KIND = 'cyborg-gpu interference'
VERSION = 1
LEAST, MOST = 0.1, 1000
"""Limits of a slowdown that the weigher reads."""


class Outcome(enum.Enum):
    """How the runs of an application, alone or beside another, ended."""

    MEASURED = 'measured'
    OUT_OF_MEMORY = 'out of memory'
    FAILED = 'failed'
    TIMED_OUT = 'timed out'

    @property
    def is_final(self) -> bool:
        """Whether this is a result, which need not be tried again."""
        return self in (Outcome.MEASURED, Outcome.OUT_OF_MEMORY)


@dataclasses.dataclass(frozen=True)
class Runs:
    """The runs of one application, alone or beside another.

    :ivar seconds: the run time of each run that succeeded.
    :ivar gpu_memory_mib: the peak of the processes' GPU memory; None if
        unknown.
    :ivar problem: for people, if the outcome is not MEASURED.
    """

    outcome: Outcome = Outcome.MEASURED
    seconds: tuple[float, ...] = ()
    gpu_memory_mib: int | None = None
    problem: str = ''

    @property
    def median(self) -> float | None:
        """The median run time in seconds, which ignores a disturbed run."""
        return statistics.median(self.seconds) if self.seconds else None

    @classmethod
    def of(cls, item: dict[str, Any]) -> Runs:
        """Create it from an entry that fits the schema."""
        return cls(Outcome(item.get('outcome', Outcome.MEASURED.value)),
                   tuple(item['seconds']),
                   item.get('gpu_memory_mib'), item.get('problem', ''))

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for the file."""
        return {**dataclasses.asdict(self), 'outcome': self.outcome.value}


Step = tuple[str, str | None]
"""An application, and the application beside it; None for alone."""

_RUNS = schema.mapping(
    {'seconds': schema.listing({'type': 'number', 'exclusiveMinimum': 0})},
    {'outcome': {'enum': [item.value for item in Outcome]},
     'gpu_memory_mib': schema.nullable(schema.integer(0)),
     'problem': schema.TEXT})


def _by_name(below: schema.Schema) -> schema.Schema:
    return {'type': 'object', 'additionalProperties': below}


_FILE = schema.mapping(
    {'slowdown': _by_name(_by_name(schema.nullable(
        {'type': 'number', 'minimum': LEAST, 'maximum': MOST})))},
    {'kind': {'const': KIND}, 'version': {'const': VERSION},
     'applications': _by_name(apps.APPLICATION),
     'repeats': schema.integer(1), 'warmups': schema.integer(0),
     'alone': _by_name(_RUNS), 'pairs': _by_name(_by_name(_RUNS))},
    closed=False)


@dataclasses.dataclass
class Results:
    """What was measured so far.

    :ivar applications: empty in a file that a person wrote.
    :ivar repeats: measured runs of each step.
    :ivar warmups: runs before the measured ones; their times are not used.
    :ivar runs: the result of each step.
    """

    applications: Sequence[apps.Application] = ()
    repeats: int = 3
    warmups: int = 1
    runs: dict[Step, Runs] = dataclasses.field(default_factory=dict)
    given: dict[str, dict[str, float | None]] = dataclasses.field(
        default_factory=dict)
    """Slowdowns that a person wrote, without run times."""

    def describes(self, other: Results) -> bool:
        """Whether both measure the same commands in the same way."""
        return (_plain(self) == _plain(other)
                and self.repeats == other.repeats
                and self.warmups == other.warmups)

    def steps(self) -> list[Step]:
        """Return all steps in order: each application alone, then all pairs.
        """
        names = [item.name for item in self.applications]
        return [*((name, None) for name in names),
                *itertools.product(names, names)]

    def open_steps(self) -> list[Step]:
        """Return the steps that have no result yet."""
        return [step for step in self.steps()
                if step not in self.runs
                or not self.runs[step].outcome.is_final]

    def slowdowns(self) -> dict[str, dict[str, float | None]]:
        """Return the run times beside another, divided by those alone.

        A pair that runs out of memory has None. A pair that failed in another
        way, or whose ratio is not plausible, is left out: it counts as not
        measured.
        """
        found = {name: dict(row) for name, row in self.given.items()}
        for (name, beside), runs in self.runs.items():
            if beside is None:
                continue
            ratio = self.ratio(name, beside)
            if runs.outcome is Outcome.OUT_OF_MEMORY:
                found.setdefault(name, {})[beside] = None
            elif ratio and LEAST <= ratio <= MOST:
                found.setdefault(name, {})[beside] = round(ratio, 4)
        return found

    def ratio(self, name: str, beside: str) -> float | None:
        """Return the slowdown by the run times; None without them."""
        pair = self.runs.get((name, beside), Runs())
        alone = self.runs.get((name, None), Runs())
        if pair.outcome is not Outcome.MEASURED or not (
                pair.median and alone.median):
            return None
        return pair.median / alone.median

    def dump(self) -> str:
        """Return the file's text."""
        pairs: dict[str, dict[str, Any]] = {}
        for (name, beside), runs in self.runs.items():
            if beside is not None:
                pairs.setdefault(name, {})[beside] = runs.to_dict()
        return json.dumps({
            'kind': KIND, 'version': VERSION,
            'applications': _plain(self),
            'repeats': self.repeats, 'warmups': self.warmups,
            'alone': {name: runs.to_dict() for (name, beside), runs
                      in self.runs.items() if beside is None},
            'pairs': pairs, 'slowdown': self.slowdowns()}, indent=1) + '\n'


def parse(text: str, source: str) -> Results:
    """Read a file that ``dump`` or a person wrote.

    :param source: the file's name, for errors.
    :raises DocumentError: names the place and what is expected there.
    """
    place = schema.Place(source)
    content = layout_yaml.plain(text, place)
    schema.check(content, _FILE, place)
    runs: dict[Step, Runs] = {
        (name, None): Runs.of(item)
        for name, item in content.get('alone', {}).items()}
    for name, row in content.get('pairs', {}).items():
        runs.update(((name, beside), Runs.of(item))
                    for beside, item in row.items())
    return Results(
        [apps.Application.of(name, item, place.below('applications', name))
         for name, item in content.get('applications', {}).items()],
        content.get('repeats', 3), content.get('warmups', 1), runs,
        content['slowdown'])


def _plain(results: Results) -> dict[str, Any]:
    return {item.name: item.to_dict() for item in results.applications}
