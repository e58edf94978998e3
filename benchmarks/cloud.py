# SPDX-License-Identifier: Apache-2.0

"""The cost of openstack gpu in a cloud of many hosts.

The released Placement has hosts with GPUs in MIG mode, written directly into
its database. Prepared answers stand in for Cyborg and Nova. All three run in
a separate process, so that the CPU time is the command's alone. Each command
is measured with two sizes of the cloud. The difference is the cost of a host.
The cost of 1,000 and 10,000 hosts follows from it. The baseline asks
Placement for each resource provider. The floor is one request for each host.
The baseline finds as many used units as the command.

usage: python benchmarks/cloud.py [-f table|json] [--hosts FEW,MANY] [--gpus N]

Exits 1 if a host costs a command more requests than its limit.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import logging
import multiprocessing
import pathlib
import sqlite3
import sys
import tempfile
import time
import tracemalloc
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from urllib import parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / 'tools'))

import figures
from openstack import connection as sdk

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import hosts as cloud_hosts
from cyborg_gpu_driver.cloud import nova as cloud_nova
from cyborg_gpu_driver.cloud import orphans
from cyborg_gpu_driver.cloud import placement as cloud_placement
from cyborg_gpu_driver.cloud import question
from cyborg_gpu_driver.report.content import names
from demo_lib import database
from demo_lib import httpd
from demo_lib import placement_service

PROFILES = {'1g.10gb': 7, '1g.10gb.me': 1, '1g.20gb': 4, '2g.20gb': 3,
            '3g.40gb': 2, '4g.40gb': 1, '7g.80gb': 1}
USED, FULL = '1g.10gb', '2g.20gb'
"""A profile that servers use, and one whose inventory is all reserved."""
SERVERS = 2
"""Servers on every second GPU."""
TRAITS = ('OWNER_CYBORG', 'CUSTOM_GPU_KIND_MIG', 'CUSTOM_GPU_MEMORY_10GB',
          'CUSTOM_GPU_MODEL_A100_SXM4_80GB', 'CUSTOM_GPU_NUMA_1')
ROOT_TRAITS = ('COMPUTE_ACCELERATORS', 'COMPUTE_NODE')
ROOT = {'VCPU': 256, 'MEMORY_MB': 1 << 20, 'DISK_GB': 4096}
SCALES = (1000, 10000)
CPU_TARGET = 60.0
"""Seconds of CPU time of a command at 1,000 hosts."""
MEMORY_TARGET = 700.0
"""MiB that the command needs at most at 10,000 hosts."""
REQUESTS_LIMIT = 3000
"""Requests of a command at 1,000 hosts."""
_LEAST = 2
"""The smallest number of hosts to examine. With fewer servers, the command
asks Nova about each server."""
_PARTS = ('inventories', 'usages', 'traits')
_PAGE = 1000


class Content:
    """What the services know about a cloud.

    :param hosts: the number of hosts.
    :param gpus: the number of GPUs of each host.
    """

    def __init__(self, hosts: int, gpus: int):
        self.hosts = [f'compute{number:05}' for number in range(hosts)]
        self.roots = {host: _uuid(host) for host in self.hosts}
        self.providers = [
            (host, number, label) for host in self.hosts
            for number in range(gpus) for label in PROFILES]
        self.servers = [
            (_uuid(f'server {host} {number} {count}'), host,
             _name(host, number, USED))
            for host in self.hosts for number in range(0, gpus, 2)
            for count in range(SERVERS)]

    def fill(self, path: str) -> None:
        """Write the hosts and servers into Placement's database."""
        with contextlib.closing(sqlite3.connect(path)) as base, base:
            _Filler(base).fill(self)

    def cyborg(self) -> dict[str, Any]:
        """Return Cyborg's answers by path."""
        return {
            '/v2/deployables': {'deployables': [
                {'rp_uuid': names.provider_uuid(_name(*provider)),
                 'num_accelerators': PROFILES[provider[2]]}
                for provider in self.providers]},
            '/v2/devices': {'devices': [
                {'uuid': _uuid(f'{host} {number}'), 'hostname': host,
                 'model': 'A100', 'status': 'enabled'}
                for host, number, label in self.providers if label == USED]},
            '/v2/device_profiles': {'device_profiles': [
                {'uuid': label, 'name': label, 'description': '',
                 'groups': [{f'resources:{_class(label)}': '1'}]}
                for label in (USED, FULL)]},
            '/v2/accelerator_requests': self._requests}

    def _requests(self, query):
        asked = dict(parse.parse_qsl(query)).get('instance')
        return {'arqs': [
            {'uuid': _uuid(f'arq {server}'), 'state': 'Bound',
             'instance_uuid': server, 'hostname': host,
             'device_rp_uuid': names.provider_uuid(provider),
             'device_profile_name': USED, 'attach_handle_type': 'MDEV',
             'attach_handle_uuid': server, 'attach_handle_info': {
                 'domain': '0000', 'bus': '07', 'device': '00',
                 'function': '4'}}
            for server, host, provider in self.servers
            if asked in (None, server)]}

    def nova(self) -> dict[str, Any]:
        """Return Nova's answers by path; it lists servers in pages."""
        found = [{'id': server, 'name': server, 'status': 'ACTIVE',
                  'tenant_id': 'project',
                  'OS-EXT-SRV-ATTR:hypervisor_hostname': host}
                 for server, host, _ in self.servers]
        return {
            '/v2.1/os-services': {'services': [
                {'host': host, 'state': 'up', 'status': 'enabled',
                 'zone': 'nova', 'disabled_reason': None}
                for host in self.hosts]},
            '/v2.1/os-hypervisors/detail': {'hypervisors': [
                {'id': self.roots[host], 'service': {'host': host}}
                for host in self.hosts]},
            '/v2.1/os-migrations': {'migrations': []},
            '/v2.1/servers/detail': lambda query: _page(found, query),
            **{f'/v2.1/servers/{item["id"]}': {'server': item}
               for item in found}}


class _Filler:
    """Writes rows of Placement's tables."""

    def __init__(self, base: sqlite3.Connection):
        self._base = base
        self._traits = self._named('traits', {*TRAITS, *ROOT_TRAITS})
        self._classes = self._named(
            'resource_classes', {*ROOT, *map(_class, PROFILES)})
        self._owner = {table: self._insert(table, external_id='nobody')
                       for table in ('projects', 'users')}

    def fill(self, content: Content) -> None:
        roots = {host: self._provider(
            content.roots[host], host, None, ROOT, ROOT_TRAITS)
            for host in content.hosts}
        made = {}
        for host, number, label in content.providers:
            name = _name(host, number, label)
            total = PROFILES[label]
            made[name] = self._provider(
                names.provider_uuid(name), name, roots[host],
                {_class(label): total}, TRAITS,
                reserved=total if label == FULL else 0)
        for server, host, provider in content.servers:
            self._insert('consumers', uuid=server,
                         project_id=self._owner['projects'],
                         user_id=self._owner['users'])
            for holder, name in ((roots[host], 'VCPU'),
                                 (made[provider], _class(USED))):
                self._insert('allocations', resource_provider_id=holder,
                             consumer_id=server, used=1,
                             resource_class_id=self._classes[name])

    def _provider(self, identity, name, root, inventories, traits,
                  reserved=0):
        row = self._insert('resource_providers', uuid=identity, name=name,
                           generation=1, root_provider_id=root,
                           parent_provider_id=root)
        if root is None:
            self._base.execute('UPDATE resource_providers SET '
                               'root_provider_id = id WHERE id = ?', (row,))
        for resource_class, total in inventories.items():
            self._insert('inventories', resource_provider_id=row,
                         resource_class_id=self._classes[resource_class],
                         total=total, reserved=reserved, min_unit=1,
                         max_unit=total, step_size=1, allocation_ratio=1.0)
        for trait in traits:
            self._insert('resource_provider_traits',
                         resource_provider_id=row,
                         trait_id=self._traits[trait])
        return row

    def _named(self, table, wanted):
        """Return ids by name, and insert the rows that do not exist."""
        found = dict(self._base.execute(f'SELECT name, id FROM {table}'))
        for name in sorted(wanted - found.keys()):
            found[name] = self._insert(table, name=name)
        return found

    def _insert(self, table, **values):
        # Placement includes the time of the last change in its answers.
        values['created_at'] = '2026-01-01 00:00:00'
        return self._base.execute(
            f'INSERT INTO {table} ({", ".join(values)}) VALUES '
            f'({", ".join("?" * len(values))})',
            tuple(values.values())).lastrowid


def _uuid(text):
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, text))


def _name(host, number, label):
    return f'{host}_gpu_0000:{number:02x}:00.0_{label}'


def _class(label):
    return names.custom(names.VENDOR, label.replace('.me', '+me'))


def _page(found, query):
    asked = dict(parse.parse_qsl(query))
    found = [item for item in found if asked.get('host') in (
        None, item['OS-EXT-SRV-ATTR:hypervisor_hostname'])]
    marker = asked.get('marker')
    start = next((number for number, item in enumerate(found, 1)
                  if item['id'] == marker), 0)
    page = {'servers': found[start:start + _PAGE]}
    if start + _PAGE < len(found):
        page['servers_links'] = [{'rel': 'next'}]
    return page


def _documents(root, latest, answers):
    """Return a WSGI application that gives these answers.

    :param root: the path of its endpoint.
    :param latest: its latest microversion.
    """
    texts: dict[str, bytes] = {}

    def answer(environ, start_response):
        path = environ['PATH_INFO']
        found = answers.get(path)
        if path.rstrip('/') == root:
            found = {'version': {
                'id': root.strip('/'), 'status': 'CURRENT',
                'min_version': latest.split('.')[0] + '.0',
                'version': latest, 'max_version': latest, 'links': [{
                    'rel': 'self',
                    'href': f'http://{environ["HTTP_HOST"]}{root}'}]}}
        if callable(found):
            body = json.dumps(found(environ['QUERY_STRING'])).encode()
        elif found is not None:
            body = texts.get(path) or texts.setdefault(
                path, json.dumps(found).encode())
        else:
            body = b'{}'
        start_response('404 Not Found' if found is None else '200 OK',
                       [('Content-Type', 'application/json')])
        return [body]
    return answer


def _serve(pipe, directory, path, content):
    """Run the services until the other end of the pipe sends a message."""
    logging.disable(logging.CRITICAL)
    placement = placement_service.PlacementService(directory, path)
    pipe.send({
        'placement': placement.url,
        'accelerator': httpd.Httpd(_documents(
            '/v2', '2.3', content.cyborg())).url + '/v2',
        'compute': httpd.Httpd(_documents(
            '/v2.1', '2.96', content.nova())).url + '/v2.1'})
    pipe.recv()


class Counting(connection.Cloud):
    """A cloud that counts the requests to each service."""

    def __init__(self, made: sdk.Connection):
        super().__init__(made, 'benchmark')
        self.asked: collections.Counter[str] = collections.Counter()
        self._request = made.session.request
        made.session.request = self._counted

    def _counted(self, url, method, **kwargs):
        """Count a request, but not those that discover a service."""
        service = (kwargs.get('endpoint_filter') or {}).get('service_type')
        if service:
            self.asked[service] += 1
        return self._request(url, method, **kwargs)


@contextlib.contextmanager
def running(content: Content, templates: database.Templates
            ) -> Iterator[Counting]:
    """Run a cloud with this content.

    :param templates: the databases to copy for it.
    """
    with tempfile.TemporaryDirectory() as directory:
        _, path = templates.copy(directory)
        content.fill(path)
        here, there = multiprocessing.Pipe()
        services = multiprocessing.get_context('fork').Process(
            target=_serve, args=(there, directory, path, content))
        services.start()
        try:
            if not here.poll(60):
                raise RuntimeError('the services did not start in 60 seconds')
            urls = here.recv()
            yield Counting(sdk.Connection(
                auth_type='admin_token', auth={
                    'endpoint': urls['placement'], 'token': 'admin'},
                api_timeout=120, **{f'{service}_endpoint_override': url
                                    for service, url in urls.items()}))
        finally:
            here.send('stop')
            services.join(10)
            services.kill()


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one command."""

    requests: int
    seconds: float
    """CPU time."""
    used: int
    """Units that the command found in use."""


def cost(cloud: Counting, command: Callable[[Counting], int]) -> Cost:
    """Return the cost of a command that returns how many units are used."""
    cloud.asked.clear()
    start = time.process_time()
    used = command(cloud)
    return Cost(cloud.asked.total(), time.process_time() - start, used)


def memory(cloud: Counting, command: Callable[[Counting], int]) -> float:
    """Return the most MiB that Python's objects need in a command."""
    tracemalloc.start()
    try:
        command(cloud)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return most / 2 ** 20


def gpu_list(cloud: Counting) -> int:
    """Do what ``openstack gpu list`` does."""
    return sum(offer.used for host in cloud_hosts.read(cloud)
               for offer in host.providers)


def profile_list(cloud: Counting) -> int:
    """Count what ``openstack gpu profile list`` counts."""
    profiles = cloud_hosts.catalogue(cloud_placement.read_providers(cloud))
    return sum(sum(node.used for node in nodes)
               for nodes in profiles.values())


def orphan_clean(cloud: Counting) -> int:
    """Do what ``openstack gpu orphan clean --dry-run`` does."""
    known = orphans.read(cloud)
    if orphans.find(known):
        raise RuntimeError('this cloud has no orphans')
    return sum(sum(amounts.values()) for tree in known.trees
               for node in tree.below for amounts in node.holders.values())


def by_provider(cloud: Counting, parts=_PARTS) -> int:
    """Be the baseline: read each part of each resource provider."""
    items = cloud_placement.listed(cloud, required='OWNER_CYBORG')
    parted = cloud_placement.at_once(
        lambda item: cloud_placement.provider_parts(cloud, item, parts), items)
    return sum(sum(told['usages'].values()) for told in parted)


def explain(profile: str, most: int) -> Callable[[Counting], int]:
    """Return a command that does what ``openstack gpu explain`` does.

    :param most: the maximum number of hosts to examine.
    """
    def command(cloud):
        found = question.answer(cloud, profile=profile, most=most)
        if found.schedulable != (profile == USED):
            raise RuntimeError(found.sentence)
        return len(found.hosts)
    return command


def server_show(server: str) -> Callable[[Counting], int]:
    """Return a command that does what ``openstack gpu server show`` does.

    :param server: the server's UUID.
    """
    return lambda cloud: len(cloud_nova.accelerators(cloud, server))


WHOLE = {'list': gpu_list, 'profile list': profile_list,
         'orphan clean': orphan_clean}
"""The commands that examine all hosts."""
LIMITS = {'list': 1, 'profile list': 1, 'orphan clean': 1, 'explain': 3}
"""The limit of requests for each host that a command examines."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A cost that grows linearly with the number of hosts."""

    fixed: float
    each: float

    @classmethod
    def through(cls, few: int, low: float, many: int, high: float) -> Line:
        """Return the line through the costs of two numbers of hosts."""
        each = (high - low) / (many - few)
        return cls(low - each * few, each)

    def at(self, hosts: int) -> float:
        return max(0.0, self.fixed) + max(0.0, self.each) * hosts


def measure(sizes: tuple[int, int], gpus: int,
            templates: database.Templates) -> Iterator[figures.Figure]:
    few, many = sizes
    found: dict[str, list[Cost]] = collections.defaultdict(list)
    held: list[float] = []
    for hosts in sizes:
        content = Content(hosts, gpus)
        with running(content, templates) as cloud:
            cloud_placement.listed(cloud, required='OWNER_CYBORG')
            found['baseline'].append(cost(cloud, by_provider))
            for name, command in WHOLE.items():
                found[name].append(cost(cloud, command))
                _check_equal(name, found)
            held.append(memory(cloud, profile_list))
            for profile in (USED, FULL):
                for most in (_LEAST, few):
                    found[f'explain {profile} {most}'].append(
                        cost(cloud, explain(profile, most)))
            found['server show'].append(cost(
                cloud, server_show(content.servers[0][0])))
    baseline = _lines(sizes, found['baseline'])
    for name in WHOLE:
        yield from _whole(name, _lines(sizes, found[name]), baseline)
    yield figures.Figure(
        f'profile list: memory at {SCALES[1]} hosts',
        Line.through(few, held[0], many, held[1]).at(SCALES[1]), 'MiB',
        target=MEMORY_TARGET)
    for profile, title in ((USED, 'explain'), (FULL, 'explain, refused')):
        yield from _explained(title, few, many, [
            found[f'explain {profile} {most}'] for most in (_LEAST, few)],
            baseline)
    show = _lines(sizes, found['server show'])
    yield figures.Figure('server show: requests', show[0].at(many), '',
                         limit=4)


def _check_equal(name, found):
    if found[name][-1].used != found['baseline'][-1].used:
        raise RuntimeError(f'{name} found {found[name][-1].used} used units, '
                           f'the baseline {found["baseline"][-1].used}')


def _lines(sizes, costs):
    """Return requests and CPU seconds as lines over the number of hosts."""
    few, many = sizes
    low, high = costs
    return (Line.through(few, low.requests, many, high.requests),
            Line.through(few, low.seconds, many, high.seconds))


def _whole(name, lines, baseline):
    requests, seconds = lines
    yield figures.Figure(f'{name}: requests for a host', requests.each, '',
                         baseline[0].each, 1, limit=LIMITS[name])
    yield figures.Figure(f'{name}: CPU for a host', 1000 * seconds.each, 'ms',
                         1000 * baseline[1].each)
    for hosts in SCALES:
        yield figures.Figure(
            f'{name}: requests at {hosts} hosts', requests.at(hosts), '',
            baseline[0].at(hosts), hosts,
            limit=REQUESTS_LIMIT if hosts == SCALES[0] else None)
        yield figures.Figure(
            f'{name}: CPU at {hosts} hosts', seconds.at(hosts), 's',
            baseline[1].at(hosts),
            target=CPU_TARGET if hosts == SCALES[0] else None)


def _explained(title, few, many, costs, baseline):
    """Yield the cost per examined host and per host of the cloud."""
    (least_few, _), (all_few, all_many) = costs
    examined = Line.through(_LEAST, least_few.requests, few,
                            all_few.requests)
    of_cloud = Line.through(few, all_few.requests, many, all_many.requests)
    yield figures.Figure(f'{title}: requests for a host that is examined',
                         examined.each, '', limit=LIMITS['explain'])
    # In a cloud of another size, the command may choose other hosts.
    yield figures.Figure(f'{title}: requests for another host',
                         of_cloud.each, '', baseline[0].each, 0,
                         limit=3 / (many - few))
    seconds = [Line.through(few, all_few.seconds, many, all_many.seconds),
               Line.through(_LEAST, least_few.seconds, few,
                            all_few.seconds)]
    for hosts in SCALES:
        beyond = question.MOST - few
        yield figures.Figure(
            f'{title}: requests at {hosts} hosts', all_many.requests
            + examined.each * beyond, '', baseline[0].at(hosts))
        yield figures.Figure(
            f'{title}: CPU at {hosts} hosts',
            seconds[0].at(hosts) + max(0.0, seconds[1].each) * beyond, 's',
            baseline[1].at(hosts))


def _numbers(text):
    few, many = map(figures.at_least(_LEAST + 1), text.split(','))
    if many <= few:
        raise ValueError(text)
    return few, many


def main(argv: list[str] | None = None) -> int:
    parser = figures.parser(__doc__.splitlines()[0], 1)
    parser.add_argument('--hosts', type=_numbers, default=(4, 12),
                        metavar='FEW,MANY')
    parser.add_argument('--gpus', type=figures.at_least(1), default=8,
                        help='GPUs of each host')
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        templates = database.Templates(directory)
        templates.make()
        return figures.show(measure(options.hosts, options.gpus, templates),
                            options.format)


if __name__ == '__main__':
    sys.exit(main())
