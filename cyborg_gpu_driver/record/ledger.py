# SPDX-License-Identifier: Apache-2.0
"""How long servers have had a GPU or parts of it: its ledger. Pure.

A vGPU or slice counts from the end of its bind until Cyborg gives it back, a
whole GPU from the first look at Placement that finds its server until the
first that does not. The ledger is a part of the GPU's record: what is assigned
and for how long are written in one step, so no kill separates the two.

Times are read from a clock that counts since the host has booted and that
nobody can set, so a step of the time of day changes nothing. A boot has no
such clock in common with the next one. Therefore the time between the last
report before a restart and the first after it is not counted.

Prometheus takes a counter that falls for one that began again at 0, and counts
all of it once more. So no sum here ever falls: times are whole milliseconds,
which add without rounding, and time that runs is shown only up to the last
report, which no end of it can precede.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Moment:
    """A time within one boot of the host."""

    boot: str
    """The kernel's id of the boot."""
    uptime: int
    """Milliseconds since the host has booted, with those of its sleep."""


@dataclasses.dataclass(frozen=True)
class Running:
    """What a server has now."""

    key: str
    """UUID of the attach handle; of the server for a whole GPU."""
    profile: str
    since: Moment
    """From when on it has to be counted."""
    counted: int = 0
    """Milliseconds that were counted before that, in earlier boots."""
    project: str | None = None
    """UUID of the server's project; empty if this host cannot know it, None
    if it does not know it yet."""

    def until(self, moment: Moment | None) -> int:
        """How many milliseconds there were up to a moment.

        :param moment: None if none is known. One of another boot says
            nothing.
        """
        if moment is None or moment.boot != self.since.boot:
            return self.counted
        return self.counted + max(0, moment.uptime - self.since.uptime)


@dataclasses.dataclass(frozen=True)
class Ledger:
    """The time that servers have had one GPU or its parts."""

    running: tuple[Running, ...] = ()
    ended: Mapping[str, Mapping[str, int]] = dataclasses.field(
        default_factory=dict)
    """Milliseconds by profile and project. An unknown project is empty."""

    def sums(self, moment: Moment | None
             ) -> dict[tuple[str, str], int]:
        """Milliseconds by profile and project, up to a moment.

        Time of an unknown project counts when it has ended: until then its
        project may become known.

        :param moment: the last report; see :meth:`Running.until`.
        """
        found = collections.Counter({
            (profile, project): time
            for profile, projects in self.ended.items()
            for project, time in projects.items()})
        for item in self.running:
            if item.project is not None:
                found[item.profile, item.project] += item.until(moment)
        return dict(found)

    def named(self, projects: Mapping[Running, str]) -> Ledger:
        """The ledger with the projects of what runs.

        :param projects: by what ran when they were asked for. A handle may
            have ended since then, and run for another server.
        """
        return dataclasses.replace(self, running=tuple(
            dataclasses.replace(item, project=projects[item])
            if item in projects else item for item in self.running))

    def is_past(self, boot: str) -> bool:
        """Whether anything was counted last in an earlier boot."""
        return any(item.since.boot != boot for item in self.running)


def following(known: Ledger, assigned: Mapping[str, str], now: Moment,
              last: Moment | None) -> Ledger:
    """The ledger after a change of what is assigned.

    :param assigned: profile of what servers have from now on, by
        :attr:`Running.key`.
    :param last: the last report, which may be of an earlier boot.
    """
    running = []
    ended = {profile: dict(projects)
             for profile, projects in known.ended.items()}
    for item in known.running:
        if item.since.boot != now.boot:
            item = dataclasses.replace(item, since=now,
                                       counted=item.until(last))
        if assigned.get(item.key) == item.profile:
            running.append(item)
            continue
        projects = ended.setdefault(item.profile, {})
        project = item.project or ''
        projects[project] = projects.get(project, 0) + item.until(now)
    before = {item.key for item in running}
    running += [Running(key, profile, now)
                for key, profile in sorted(assigned.items())
                if key not in before]
    return Ledger(tuple(running), ended)
