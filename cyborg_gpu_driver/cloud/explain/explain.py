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
"""Explain, host by host, whether a request can be scheduled. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from cyborg_gpu_driver.cloud.explain import facts
from cyborg_gpu_driver.cloud.explain import host as explain_host
from cyborg_gpu_driver.cloud.explain import match as explain_match
from cyborg_gpu_driver.cloud.explain import precheck
from cyborg_gpu_driver.cloud.explain import provider as explain_provider
from cyborg_gpu_driver.cloud.explain import reasons
from cyborg_gpu_driver.cloud.explain import request

_NO_CANDIDATE = 9
"""Distance of a group for which a host has nothing at all."""

Finding = reasons.Finding
Reason = reasons.Reason


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A provider that has a resource class of a group.

    :ivar findings: everything that is missing; empty if the group fits.
    """

    group: str
    provider: facts.Node
    findings: tuple[reasons.Finding, ...] = ()

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
    findings: tuple[reasons.Finding, ...]
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

    findings: tuple[reasons.Finding, ...]
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
        tuple(precheck.missing(wanted, known)), tuple(hosts), (
            *known.unchecked,
            *(f'extra spec {key} of the flavor, which Nova expands'
              for key in wanted.ignored)))


def _first(host):
    """The first thing that a host lacks, in words."""
    found = [item for item in host.findings if item.blocks]
    for candidate in host.candidates:
        found.extend(item for item in candidate.findings if item.blocks)
    return found[0].text if found else 'Placement does not say why'


def _host(wanted, tree, known):
    findings = list(explain_host.missing(wanted, tree, known))
    candidates = []
    away = 0
    for group in wanted.granular:
        mine = sorted(_candidates(group, tree, known), key=lambda item: (
            reasons.distance(item.findings), item.provider.name))
        candidates.extend(mine)
        away += min((reasons.distance(item.findings) for item in mine),
                    default=_NO_CANDIDATE)
        findings.extend(_group(group, mine, tree, known))
    fits = (explain_match.root_accepts(wanted, tree)
            and explain_match.assignment(wanted, tree) is not None)
    if not fits and all(explain_match.options(group, tree)
                        for group in wanted.groups):
        findings.extend(_together(wanted, tree))
    scheduled = _scheduled(fits, tree, known, findings)
    if scheduled:
        findings.extend(_same_gpu(wanted, tree))
    accepted = (
        scheduled and _can_be_bound(wanted, tree, candidates, fits)
        and not any(item.blocks and item.reason in reasons.BESIDE_PLACEMENT
                    for item in findings))
    return Host(tree.name, accepted, scheduled, tuple(findings),
                tuple(candidates), reasons.distance(findings) + away)


def _candidates(group, tree, known):
    for node in tree.nodes:
        if set(group.resources) & set(node.inventories):
            yield Candidate(group.title, node, tuple(
                explain_provider.missing(group, node, tree, known)))


def _group(group, candidates, tree, known):
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


def _together(wanted, tree):
    if not explain_match.root_accepts(wanted, tree):
        return
    rivals = [group for group in wanted.granular if any(
        set(explain_match.options(group, tree))
        & set(explain_match.options(other, tree))
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


def _scheduled(fits, tree, known, findings):
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


def _same_gpu(wanted, tree):
    """Find profiles that fit only on one GPU, where they exclude each other.
    """
    gpus = {node.uuid: (node.gpu, node.place.label)
            for node in tree.below if node.place}

    def apart(taken):
        found: dict[str, str] = {}
        return all(found.setdefault(*gpus[uuid]) == gpus[uuid][1]
                   for option in taken for uuid, _, _ in option
                   if uuid in gpus)

    if (len({tuple(group.resources) for group in wanted.granular}) > 1
            and explain_match.assignment(wanted, tree, apart) is None):
        yield Finding(
            Reason.SAME_GPU, tree.name,
            f'{tree.name} has capacity for these profiles on one GPU only, '
            'where they exclude each other: Placement counts them separately, '
            'so the second bind may fail',
            'request one profile, or a host with more GPUs', blocks=False)


def _can_be_bound(wanted, tree, candidates, fits):
    """Whether the groups fit on providers for which Cyborg's bind succeeds."""
    bad = {item.provider.uuid for item in candidates if any(
        finding.reason in reasons.AT_BIND for finding in item.findings)}
    return not bad or not fits or explain_match.assignment(
        wanted, tree, lambda taken: not bad & {
            uuid for option in taken for uuid, _, _ in option}) is not None
