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
"""Find what is wrong with a request on every host. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cyborg_gpu_driver.cloud.explain import facts
from cyborg_gpu_driver.cloud.explain import reasons
from cyborg_gpu_driver.cloud.explain import request

_TOKEN = re.compile(r'service token|\b403\b|forbidden', re.I)
_BIND = re.compile(r'failed to bind accelerator requests', re.I)
_GETTING = re.compile(r'failure getting accelerator', re.I)
_NO_HOST = re.compile(r'no valid host', re.I)

Finding = reasons.Finding
Reason = reasons.Reason


def missing(wanted: request.Request, known: facts.Facts
            ) -> Iterator[reasons.Finding]:
    """Yield what excludes the request from every host, and hints."""
    if known.server is not None:
        yield from fault(known.server, known)
    yield from wanted.findings
    yield from _flavor(wanted.flavor, known.project)
    yield from _limits(known)
    yield from _classes(wanted, known)
    yield from _traits(wanted, known)
    if known.answer is not None and known.answer.refusal:
        yield Finding(
            Reason.REFUSED, 'Placement',
            f'Placement refuses the request: {known.answer.refusal}',
            "correct what Placement's message or the text above names")


def fault(server: facts.Server, known: facts.Facts
          ) -> Iterator[reasons.Finding]:
    """Explain a server's failure. All are hints: the attempt is over."""
    text = ' '.join(server.fault.split())
    named = f'server {server.name}: {text}'
    hosts = {device.host for device in known.devices or ()}
    if (server.host and known.devices is not None
            and server.host not in hosts and text):
        yield Finding(
            Reason.HOST_MISMATCH, server.name,
            f'server {server.name} was scheduled to host {server.host}, but '
            f'Cyborg knows only {", ".join(sorted(hosts)) or "no host"}',
            '[DEFAULT] host of cyborg.conf must be the hypervisor_hostname '
            'of Nova; run "cyborg-gpu check" on that host', blocks=False)
    if _NO_HOST.search(text):
        yield Finding(Reason.NO_VALID_HOST, server.name, named,
                      'see below what is missing', blocks=False)
    elif _BIND.search(text) and _TOKEN.search(text):
        yield Finding(
            Reason.SERVICE_TOKEN, server.name, named,
            'set [service_user] send_service_user_token = true in nova.conf '
            'of nova-conductor and nova-compute, with a user that has the '
            'role service',
            blocks=False)
    elif _GETTING.search(text):
        yield Finding(
            Reason.NO_NETWORK, server.name,
            named + ' Nova 34.0 reports this if the server was created '
            'without any network, and if a bind fails or takes longer than '
            '[compute] arq_binding_timeout',
            'give a network, or --network none; otherwise find the bind in '
            'the logs of cyborg-conductor, and of cyborg-agent on the host',
            blocks=False)
    elif _BIND.search(text):
        yield Finding(
            Reason.BIND_FAILED, server.name, named,
            'check that cyborg-agent runs on the host, find the bind in its '
            'log and in the log of cyborg-conductor, and run "cyborg-gpu '
            'doctor" on the host', blocks=False)
    elif text:
        yield Finding(Reason.SERVER_FAULT, server.name, named,
                      'see the log of nova-compute on the host', blocks=False)


def _flavor(flavor, project):
    if flavor is None:
        return
    if flavor.disabled:
        yield Finding(
            Reason.FLAVOR_DISABLED, flavor.name,
            f'flavor {flavor.name} is disabled', 'use another flavor')
    if (project is not None and not flavor.public
            and project not in flavor.projects):
        yield Finding(
            Reason.FLAVOR_ACCESS, flavor.name,
            f'flavor {flavor.name} is not public, and project {project} has '
            'no access to it',
            f'openstack flavor set --project {project} {flavor.name}')


def _limits(known):
    for limit in known.limits:
        if 0 <= limit.limit < limit.used + limit.wanted:
            yield Finding(
                Reason.QUOTA, limit.name,
                f'limit {limit.name} of project {known.project} is '
                f'{limit.limit}: {limit.used} used, {limit.wanted} more '
                'requested',
                'raise the limit (openstack limit, openstack quota), or '
                'delete a server of the project')


def _classes(wanted, known):
    offered = known.offered
    for name in sorted({name for group in wanted.granular
                        for name in group.resources}):
        if name in offered or not known.whole and name in known.classes:
            continue
        others = {other for other, nodes in offered.items()
                  if any(node.of_cyborg for node in nodes)}
        yield Finding(
            Reason.CLASS_NOWHERE, name,
            f'no provider of the cloud has {name}'
            + ('' if name in known.classes else
               ', and Placement does not know it')
            + (reasons.similar(name, others)
               or f'; there are {", ".join(sorted(others)) or "none"}'),
            'request an existing class ("openstack gpu profile list"), or '
            'offer it with the policy of a host')


def _traits(wanted, known):
    for group in wanted.groups:
        for trait in sorted(group.required | group.forbidden):
            yield from _trait(trait, group, known)


def _trait(trait, group, known):
    holders = [node for tree in known.trees for node in tree.nodes
               if not group.suffix or set(group.resources) & set(
                   node.inventories)]
    present = frozenset().union(*(node.traits for node in holders))
    if trait in known.unknown_traits:
        yield Finding(
            Reason.TRAIT_UNKNOWN, trait,
            f'Placement does not know trait {trait} and rejects the request '
            f'of {group.title}{reasons.similar(trait, present)}',
            'use the spelling of "openstack trait list"'
            if trait in group.required else
            f'openstack trait create {trait}: Placement must know a forbidden '
            'trait too')
    elif (trait in group.required and holders and known.whole
          and trait not in present):
        yield Finding(
            Reason.TRAIT_NOWHERE, trait,
            f'none of the providers that {group.title} can use has trait '
            f'{trait}'
            + reasons.similar(trait, present),
            'remove the trait from the request, or request an existing one')
