# SPDX-License-Identifier: Apache-2.0

"""Explain a request: which hosts can meet its groups, and what others lack.

This module is pure. Placement's candidates say which hosts can meet all
groups; the findings say what the others lack.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import missing
from cyborg_gpu_driver.cloud import request

_NO_CANDIDATE = 9
"""Distance of a group for which a host has nothing at all."""

Finding = request.Finding
Reason = request.Reason


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A provider that has a resource class of a group."""

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
    """Explain a request."""
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
    options = known.answer.options.get(tree.root.uuid, ())
    if not options and all(request.takers(group, tree)
                           for group in wanted.groups):
        findings.extend(_together(wanted, tree))
    if options:
        findings.extend(_same_gpu(options, tree))
    bad = {item.provider.uuid for item in candidates if any(
        finding.reason in request.AT_BIND for finding in item.findings)}
    accepted = any(not bad & option for option in options) and not any(
        item.blocks and item.reason in request.BESIDE_PLACEMENT
        for item in findings)
    return Host(tree.name, accepted, bool(options), tuple(findings),
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
                and item.provider.suits(group.required, group.forbidden)]
        if free and max(free) < amount <= sum(free):
            yield Finding(
                Reason.COUNT_SPLIT, tree.name,
                f'{tree.name} has {sum(free)} {name} free, but no single GPU '
                f'has {amount}; a group is allocated from one GPU',
                f'request {amount} groups of 1 in the device profile',
                blocks=False)


def _together(wanted: request.Request, tree: facts.Tree
              ) -> Iterator[request.Finding]:
    if (wanted.root_required - tree.root.traits
            or wanted.root_forbidden & tree.root.traits):
        return
    rivals = [group for group in wanted.granular if any(
        request.takers(group, tree) & request.takers(other, tree)
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


def _same_gpu(options: Collection[facts.Option], tree: facts.Tree
              ) -> Iterator[request.Finding]:
    """Find profiles that fit only on one GPU, where they exclude each other.
    """
    places = {node.uuid: node.place for node in tree.below if node.place}

    def exclude(option: facts.Option) -> bool:
        used = {places[uuid] for uuid in option if uuid in places}
        return len({place.gpu for place in used}) < len(used)

    if all(map(exclude, options)):
        yield Finding(
            Reason.SAME_GPU, tree.name,
            f'{tree.name} has capacity for these profiles on one GPU only, '
            'where they exclude each other: Placement counts them separately, '
            'so the second bind may fail',
            'request one profile, or a host with more GPUs', blocks=False)
