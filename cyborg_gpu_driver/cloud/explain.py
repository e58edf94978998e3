# SPDX-License-Identifier: Apache-2.0

"""Explain a request: which hosts can meet its groups, and what others lack.

This module is pure. The rules of the match are those of Placement
(``placement/objects/allocation_candidate.py``): each numbered group uses one
provider, and the group without a number can use any providers of the tree.
The amounts that several groups use of one provider add up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import missing
from cyborg_gpu_driver.cloud import request

Option = request.Option
_NO_CANDIDATE = 9
"""Distance of a group for which a host has nothing at all."""

Finding = request.Finding
Reason = request.Reason


def root_accepts(wanted: request.Request, tree: facts.Tree) -> bool:
    """Whether the root provider has the traits that the request requires."""
    return (wanted.root_required <= tree.root.traits
            and not wanted.root_forbidden & tree.root.traits)


def assignment(wanted: request.Request, tree: facts.Tree,
               also: Callable[[Sequence[Option]], bool] = lambda taken: True
               ) -> tuple[Option, ...] | None:
    """Return one way to meet all groups at once; None if there is none.

    :param also: a further condition. It gets the options that are chosen so
        far and returns whether they are acceptable.
    """
    groups = wanted.groups
    found = [request.options(group, tree) for group in groups]
    if not all(found):
        return None
    # Groups with the fewest options first. Groups with the same options are
    # adjacent, because trying them in one order is enough.
    order = sorted(range(len(groups)), key=lambda index: (
        len(found[index]), str(sorted(found[index]))))
    limits = {(node.uuid, name): min(inventory.free, inventory.max_unit)
              for node in tree.nodes
              for name, inventory in node.inventories.items()}
    if _too_many(found, limits):
        return None
    search = _Search([found[index] for index in order], limits,
                     {position for position, index in enumerate(order)
                      if groups[index].suffix}
                     if wanted.policy == 'isolate' else set(), also)
    taken = search.run()
    if taken is None:
        return None
    return tuple(taken[order.index(index)] for index in range(len(groups)))


def _too_many(found: Sequence[Sequence[Option]],
              limits: Mapping[tuple[str, str], int]) -> bool:
    """Whether groups that fit only on the same providers request more than
    these have in total. This finds most impossible requests without a search.
    """
    held = [{part[:2] for option in choices for part in option}
            for choices in found]
    wanted = [{part[1]: part[2] for part in choices[0]} for choices in found]
    return any(
        sum(amounts[name] for other, amounts in zip(held, wanted, strict=True)
            if other <= places and name in amounts)
        > sum(limits[place] for place in places if place[1] == name)
        for places in held for name in {place[1] for place in places})


class _Search:
    """Depth-first search through the options of the groups, in their order.

    :param lonely: positions of the groups that must all use different
        providers.
    """

    def __init__(self, found: Sequence[Sequence[Option]],
                 limits: Mapping[tuple[str, str], int],
                 lonely: Collection[int],
                 also: Callable[[Sequence[Option]], bool]):
        self._found = found
        self._limits = limits
        self._lonely = lonely
        self._also = also
        self._used: dict[tuple[str, str], int] = {}
        self._taken: list[Option] = []

    def run(self) -> list[Option] | None:
        return list(self._taken) if self._next(0) else None

    def _next(self, first: int) -> bool:
        position = len(self._taken)
        if position == len(self._found):
            return True
        for index in range(first, len(self._found[position])):
            option = self._found[position][index]
            if not self._take(option):
                continue
            same = (position + 1 < len(self._found)
                    and self._found[position + 1] == self._found[position])
            if self._also(self._taken) and self._next(index if same else 0):
                return True
            self._give_back(option)
        return False

    def _take(self, option: Option) -> bool:
        position = len(self._taken)
        if position in self._lonely and {uuid for uuid, _, _ in option} & {
                uuid for other in self._lonely if other < position
                for uuid, _, _ in self._taken[other]}:
            return False
        for uuid, name, amount in option:
            if (self._used.get((uuid, name), 0) + amount
                    > self._limits[uuid, name]):
                return False
        for uuid, name, amount in option:
            self._used[uuid, name] = self._used.get((uuid, name), 0) + amount
        self._taken.append(option)
        return True

    def _give_back(self, option: Option) -> None:
        self._taken.pop()
        for uuid, name, amount in option:
            self._used[uuid, name] -= amount


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A provider that has a resource class of a group.

    :ivar findings: everything that is missing; empty if the group fits.
    """

    group: str
    provider: facts.Node
    findings: tuple[request.Finding, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether the group fits here, and Cyborg can bind it."""
        return not any(finding.blocks for finding in self.findings)

    def document(self) -> dict[str, Any]:
        """Return the machine-readable form."""
        place = self.provider.place
        return {
            'group': self.group, 'provider': self.provider.name,
            'gpu': place and place.gpu, 'profile': place and place.label,
            'accepted': self.accepted,
            'missing': [item.document() for item in self.findings]}


@dataclasses.dataclass(frozen=True)
class Host:
    """The result for one compute node.

    :ivar accepted: whether a server can be scheduled there, and Cyborg can
        bind its accelerator requests.
    :ivar scheduled: whether Placement has candidates on it.
    :ivar findings: what the host as a whole lacks, and hints.
    :ivar candidates: by group; within a group the nearest first.
    """

    name: str
    accepted: bool
    scheduled: bool
    findings: tuple[request.Finding, ...]
    candidates: tuple[Candidate, ...]
    distance: int = 0

    def document(self) -> dict[str, Any]:
        """Return the machine-readable form."""
        return {
            'host': self.name, 'accepted': self.accepted,
            'scheduled': self.scheduled,
            'missing': [item.document() for item in self.findings],
            'candidates': [item.document() for item in self.candidates]}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result for the whole cloud.

    :ivar findings: what excludes the request from every host, and hints.
    :ivar hosts: the hosts that accept the request first, then the nearest.
    :ivar unchecked: what was not examined.
    """

    findings: tuple[request.Finding, ...]
    hosts: tuple[Host, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def schedulable(self) -> bool:
        """Whether a server could be created now."""
        return (not any(finding.blocks for finding in self.findings)
                and any(host.accepted for host in self.hosts))

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        blocking = [item for item in self.findings if item.blocks]
        taking = sum(host.accepted for host in self.hosts)
        of_all = f'{taking} of {len(self.hosts)} hosts'
        if blocking:
            return f'Not schedulable: {blocking[0].text}.'
        if not self.hosts:
            return 'Not schedulable: no host of the cloud has accelerators.'
        if taking:
            bad = sum(host.scheduled and not host.accepted
                      for host in self.hosts)
            return (f'Schedulable: {of_all} can take it now' + (
                f'; {bad} more would be selected, but the server would fail '
                'there' if bad else '')
                + '.')
        nearest = self.hosts[0]
        return (f'Not schedulable: {of_all} can take it; nearest is '
                f'{nearest.name}: {_first(nearest)}.')

    def document(self) -> dict[str, Any]:
        """Return the machine-readable form."""
        return {
            'schedulable': self.schedulable, 'verdict': self.sentence,
            'missing': [item.document() for item in self.findings],
            'hosts': [host.document() for host in self.hosts],
            'unchecked': list(self.unchecked)}


def verdict(wanted: request.Request, known: facts.Facts) -> Verdict:
    """Explain a request.

    If Placement was asked for candidates, its answer takes precedence.
    """
    hosts = sorted((_host(wanted, tree, known) for tree in known.trees),
                   key=lambda host: (not host.accepted, host.distance,
                                     host.name))
    return Verdict(
        tuple(missing.of_request(wanted, known)), tuple(hosts), (
            *known.unchecked,
            *(f'extra spec {key} of the flavor, which Nova expands'
              for key in wanted.ignored)))


def _first(host: Host) -> str:
    """The first thing that a host lacks, in words."""
    found = [item for item in host.findings if item.blocks]
    for candidate in host.candidates:
        found.extend(item for item in candidate.findings if item.blocks)
    return found[0].text if found else 'Placement does not say why'


def _host(wanted: request.Request, tree: facts.Tree, known: facts.Facts
          ) -> Host:
    findings = list(missing.of_host(wanted, tree, known))
    candidates = []
    away = 0
    for group in wanted.granular:
        mine = sorted(_candidates(group, tree, known), key=lambda item: (
            request.distance(item.findings), item.provider.name))
        candidates.extend(mine)
        away += min((request.distance(item.findings) for item in mine),
                    default=_NO_CANDIDATE)
        findings.extend(_group(group, mine, tree, known))
    fits = (root_accepts(wanted, tree)
            and assignment(wanted, tree) is not None)
    if not fits and all(request.options(group, tree)
                        for group in wanted.groups):
        findings.extend(_together(wanted, tree))
    scheduled = _scheduled(fits, tree, known, findings)
    if scheduled:
        findings.extend(_same_gpu(wanted, tree))
    accepted = (
        scheduled and _can_be_bound(wanted, tree, candidates, fits)
        and not any(item.blocks and item.reason in request.BESIDE_PLACEMENT
                    for item in findings))
    return Host(tree.name, accepted, scheduled, tuple(findings),
                tuple(candidates), request.distance(findings) + away)


def _candidates(group: request.Group, tree: facts.Tree, known: facts.Facts
                ) -> Iterator[Candidate]:
    for node in tree.nodes:
        if set(group.resources) & set(node.inventories):
            yield Candidate(group.title, node, tuple(
                missing.of_provider(group, node, tree, known)))


def _group(group: request.Group, candidates: Sequence[Candidate],
           tree: facts.Tree, known: facts.Facts) -> Iterator[request.Finding]:
    """What a host lacks for one group, beside the findings of its providers.
    """
    if not group.resources:
        return
    if not candidates:
        offered = known.offered
        there = [name for name in group.resources if name in offered]
        if there or not known.whole:
            has = sorted({name for node in tree.below if node.of_cyborg
                          for name in node.inventories})
            yield Finding(
                Reason.CLASS_ELSEWHERE, tree.name,
                f'{tree.name} has no {", ".join(sorted(group.resources))}'
                + (f', only {", ".join(has)}' if has else ''),
                'choose another host, or offer it there with a policy')
        return
    for name, amount in group.resources.items():
        free = [item.provider.inventories[name].free for item in candidates
                if name in item.provider.inventories
                and group.required <= item.provider.traits
                and not group.forbidden & item.provider.traits]
        if free and max(free) < amount <= sum(free):
            yield Finding(
                Reason.COUNT_SPLIT, tree.name,
                f'{tree.name} has {sum(free)} {name} free, but no single GPU '
                f'has {amount}; a group is allocated from one GPU',
                f'request {amount} groups of 1 in the device profile',
                blocks=False)


def _together(wanted: request.Request, tree: facts.Tree
              ) -> Iterator[request.Finding]:
    if not root_accepts(wanted, tree):
        return
    rivals = [group for group in wanted.granular if any(
        set(request.options(group, tree))
        & set(request.options(other, tree))
        for other in wanted.granular if other is not group)]
    isolated = (', each on a different provider (group_policy isolate)'
                if wanted.policy == 'isolate' else '')
    yield Finding(
        Reason.GROUPS_TOGETHER, tree.name,
        f'{tree.name} can satisfy each group, but not all of them together'
        + isolated + ': ' + ', '.join(
            f'{group.title} ({group.wish})'
            for group in rivals or wanted.granular)
        + ' compete for the same '
        'resources', 'request fewer, wait until servers are deleted'
        + (', or use group_policy none' if isolated else ''))


def _scheduled(fits: bool, tree: facts.Tree, known: facts.Facts,
               findings: list[request.Finding]) -> bool:
    """Whether Placement schedules here; add a finding if it disagrees."""
    answer = known.answer
    if answer is None or answer.refusal:
        return fits
    has = tree.root.uuid in answer.roots
    if answer.partial and not has:
        return fits
    if has != fits:
        findings.append(Finding(
            Reason.DISAGREES, tree.name,
            f'Placement has {answer.roots.get(tree.root.uuid, 0)} candidates '
            f'on {tree.name}, but its inventories and usages say that it '
            f'{"fits" if fits else "does not fit"}',
            'something changed during the query, or the result depends on '
            'something that is not checked here: run the command again',
            blocks=False))
    return has


def _same_gpu(wanted: request.Request, tree: facts.Tree
              ) -> Iterator[request.Finding]:
    """Find profiles that fit only on one GPU, where they exclude each other.
    """
    gpus = {node.uuid: (node.place.gpu, node.place.label)
            for node in tree.below if node.place}

    def apart(taken: Sequence[Option]) -> bool:
        found: dict[str, str] = {}
        return all(found.setdefault(*gpus[uuid]) == gpus[uuid][1]
                   for option in taken for uuid, _, _ in option
                   if uuid in gpus)

    if (len({tuple(group.resources) for group in wanted.granular}) > 1
            and assignment(wanted, tree, apart) is None):
        yield Finding(
            Reason.SAME_GPU, tree.name,
            f'{tree.name} has capacity for these profiles on one GPU only, '
            'where they exclude each other: Placement counts them separately, '
            'so the second bind may fail',
            'request one profile, or a host with more GPUs', blocks=False)


def _can_be_bound(wanted: request.Request, tree: facts.Tree,
                  candidates: Sequence[Candidate], fits: bool) -> bool:
    """Whether the groups fit on providers for which Cyborg's bind succeeds."""
    bad = {item.provider.uuid for item in candidates if any(
        finding.reason in request.AT_BIND for finding in item.findings)}
    return not bad or not fits or assignment(
        wanted, tree, lambda taken: not bad & {
            uuid for option in taken for uuid, _, _ in option}) is not None
