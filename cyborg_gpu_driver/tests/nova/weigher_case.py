# SPDX-License-Identifier: Apache-2.0


"""Nova's scheduling on a real Placement that agents have filled."""

from __future__ import annotations

import contextlib
import sqlite3
import types
import uuid

import fixtures
import nova.conf
from nova import context
from nova import objects
from nova import test
from nova.scheduler import filters
from nova.scheduler import host_manager
from nova.scheduler import utils
from nova.scheduler import weights
from nova.scheduler.client import report
from nova.tests.functional import fixtures as functional_fixtures
from placement.tests import fixtures as placement_fixtures

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import filter as gpu_filter
from cyborg_gpu_driver.nova import weigher
from cyborg_gpu_driver.nova.scheduling import chooser
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.nova import base

CONF = nova.conf.CONF

# Importing it registers options, which tests set before Nova loads it.
WEIGHER = f'{weigher.__name__}.GpuWeigher'
FILTER = f'{gpu_filter.__name__}.GpuFilter'
GPUS = ('0000:18:00.0', '0000:2a:00.0')
CELL = '9f2c1c44-6b0e-4a43-9f6c-0f0e5d2f7b11'
VERSION = '1.36'
_KEPT: dict[tuple, tuple] = {}
"""What a test finds once the same hosts have published, by these hosts."""


class Database(placement_fixtures.Database):
    """Placement's database, whose tables and standard names are made once."""

    def generate_schema_create_all(self, engine):
        if () in _KEPT:
            self.restore(*_KEPT[()])
        super().generate_schema_create_all(engine)
        if () not in _KEPT:
            _KEPT[()] = (self.keep(),)

    def keep(self):
        """Return a copy of the database."""
        kept = sqlite3.connect(':memory:')
        with self._opened() as live:
            live.backup(kept)
        return kept

    def restore(self, kept):
        """Replace the content of the database by that of a copy."""
        with self._opened() as live:
            kept.backup(live)

    def _opened(self):
        return contextlib.closing(sqlite3.connect(
            self.url.removeprefix('sqlite:///')))


class Placement(functional_fixtures.PlacementFixture):
    """The released Placement on such a database."""

    def _configure_placement(self, conf_fixture):
        super()._configure_placement(conf_fixture)
        self.database = self.useFixture(
            Database(conf_fixture, set_config=True))
        # The fixture makes no other one.
        self.db = False


class Agent(base.GpuHost):
    """The agent of a simulated host, which reports to Placement.

    :param client: client of Placement.
    :param name: name of the host.
    :param gpus: addresses of its GPUs.
    :param made: URLs of what was already created in Placement.
    :param options: options of the policy.
    """

    def __init__(self, client, name, gpus, made, **options):
        super().__init__(
            'hgx-h100', policy.Policy('slices', policy.Mode.MIG, **options),
            gpus=gpus, hostname=name, placement=lambda: client)
        self._client = client
        self._made = made
        self.root = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))

    def _setUp(self):
        super()._setUp()
        self._handles = {}
        self._publish()
        self._agent.report()

    def _publish(self):
        """Publish a report in Placement, as cyborg-conductor does."""
        self._put('/resource_providers', 'post', {
            'name': self._hostname, 'uuid': self.root})
        self._put(f'/resource_providers/{self.root}/inventories', 'put', {
            'resource_provider_generation': 0,
            'inventories': {'VCPU': {'total': 64},
                            'MEMORY_MB': {'total': 4096}}})
        for device in self._agent.report():
            for deployable in device.deployables:
                self._publish_one(deployable)

    def _publish_one(self, deployable):
        provider = deployable.provider_uuid
        offer = deployable.offer
        self._handles[offer.gpu, offer.profile] = [
            provider, deployable.resource_class, list(deployable.handles)]
        self._put('/resource_providers', 'post', {
            'name': deployable.name, 'uuid': provider,
            'parent_provider_uuid': self.root})
        self._make(f'/resource_classes/{deployable.resource_class}')
        self._put(f'/resource_providers/{provider}/inventories', 'put', {
            'resource_provider_generation': 0,
            'inventories': {deployable.resource_class: {
                'total': deployable.num_accelerators}}})
        for trait in deployable.traits:
            if trait.startswith('CUSTOM_'):
                self._make(f'/traits/{trait}')
        self._put(f'/resource_providers/{provider}/traits', 'put', {
            'resource_provider_generation': 1,
            'traits': list(deployable.traits)})

    def boot(self, profile, gpu=GPUS[0], bind=True, project='project'):
        """Create a server with a slice: claim the slice and bind it.

        :param bind: False to claim without a bind.
        :returns: the argument for :meth:`delete`.
        """
        provider, resource_class, handles = self._handles[
            model.PciAddress.parse(gpu), profile]
        server, handle = str(uuid.uuid4()), handles.pop()
        self._put(f'/allocations/{server}', 'put', {
            'allocations': {provider: {'resources': {resource_class: 1}}},
            'project_id': project, 'user_id': 'user',
            'consumer_generation': None, 'consumer_type': 'INSTANCE'},
            version='1.38')
        if bind:
            self._agent.bind(str(handle.address), handle.asked_type, server)
        return server, handle

    def delete(self, booted):
        server, handle = booted
        self._agent.unbind(str(handle.address), handle.asked_type, server)
        self._client.delete(f'/allocations/{server}', version=VERSION)

    def _make(self, url):
        if url not in self._made:
            self._made.add(url)
            self._put(url, 'put')

    def _put(self, url, method, body=None, version=VERSION):
        response = getattr(self._client, method)(url, body, version=version)
        if response.status_code >= 400:
            raise AssertionError(f'{method} {url}: {response.text}')


class WeigherCase(test.TestCase):
    """Nova's weight handler, with the GPUs that agents have published."""

    PROFILES = ('1g.10gb', '3g.40gb', '4g.40gb', '7g.80gb')
    """The profiles of its hosts: only a few, as each needs a resource
    provider."""
    USES_DB = False
    USES_DB_SELF = True

    def setUp(self):
        super().setUp()
        self.database = self.useFixture(Placement()).database
        # Another test may have read other hosts of the same names.
        chooser.shared.cache_clear()
        self.addCleanup(chooser.shared.cache_clear)
        # The reader reads all hosts, even on a slow machine.
        for limit in ('weigher_reader.SHARE', 'weigher_reader.LIMIT',
                      'scheduling.chooser._WAIT',
                      'scheduling.chooser._CLAIM'):
            self.useFixture(fixtures.MonkeyPatch(
                f'cyborg_gpu_driver.nova.{limit}', 600))
        # No thread reads beside the test.
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.scheduling.chooser.CACHE_SECONDS', 600.0))
        self.flags(weight_classes=[WEIGHER], group='filter_scheduler')
        self.context = context.get_admin_context()
        self.client = report.report_client_singleton()
        self.asked = []
        get = report.SchedulerReportClient.get

        def count(client, url, *args, **kwargs):
            self.asked.append(url)
            return get(client, url, *args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(
            'nova.scheduler.client.report.SchedulerReportClient.get',
            count))
        self.hosts = {}
        self.servers = {}
        self._made = set()
        self._arranged = ()

    def host(self, name, *arrangement, gpus=GPUS[:1]):
        """Create a host that has published its GPUs.

        The process keeps what Placement has then, for the next test that
        creates the same hosts. So create them before anything else changes
        Placement.

        :param arrangement: changes in their order. A profile boots a server.
            A profile after a minus deletes the first server that has it. A
            profile before a question mark is claimed and not bound yet. An
            @ names the GPU, and a tilde at the end another project.
        """
        self._arranged += ((name, arrangement, gpus, self.PROFILES),)
        if self._arranged not in _KEPT:
            self._create(name, arrangement, gpus)
            _KEPT[self._arranged] = (
                self.database.keep(), dict(self.hosts), dict(self.servers),
                frozenset(self._made))
        kept, hosts, servers, made = _KEPT[self._arranged]
        self.database.restore(kept)
        self.hosts, self.servers, self._made = (
            dict(hosts), dict(servers), set(made))
        self.asked.clear()

    def _create(self, name, arrangement, gpus):
        agent_of_host = Agent(self.client, name, gpus, self._made,
                              profiles=self.PROFILES)
        with agent_of_host:
            servers = []
            for step in arrangement:
                if step.startswith('-'):
                    found = next(item for item in servers
                                 if item[0] == step[1:])
                    servers.remove(found)
                    agent_of_host.delete(found[1])
                    continue
                step, _tilde, project = step.partition('~')
                what, _at, gpu = step.partition('@')
                profile = what.removesuffix('?')
                servers.append((profile, agent_of_host.boot(
                    profile, gpu or gpus[0], bind=what == profile,
                    project=project or 'project')))
        self.hosts[agent_of_host.root] = name
        self.servers[name] = [server for _profile, (server, _handle)
                              in servers]

    def spec(self, *profiles, servers=1, **extra_specs):
        """A request for servers with one slice of each profile.

        :param extra_specs: extra specs of the flavor, without ``gpu:``.
        """
        return objects.RequestSpec(
            context=self.context, flavor=objects.Flavor(
                vcpus=1, memory_mb=1, root_gb=0, ephemeral_gb=0, swap=0,
                name='m1.gpu', extra_specs={
                    'accel:device_profile': 'gpu', 'group_policy': 'none',
                    **{f'gpu:{key}': value
                       for key, value in extra_specs.items()}}),
            image=objects.ImageMeta.from_dict({}), is_bfv=True,
            requested_resources=[
                objects.RequestGroup(
                    requester_id=f'device_profile_{number}',
                    use_same_provider=True, required_traits=set(),
                    forbidden_traits=set(), aggregates=[],
                    forbidden_aggregates=set(), in_tree=None,
                    resources={resource_class(profile): 1})
                for number, profile in enumerate(profiles)],
            request_level_params=objects.RequestLevelParams(),
            instance_uuid=str(uuid.uuid4()),
            num_instances=servers, project_id='project', user_id='user',
            instance_group=None, numa_topology=None, pci_requests=None,
            ignore_hosts=None, force_hosts=None, force_nodes=None,
            requested_destination=None, scheduler_hints={}, retry=None,
            limits=None, availability_zone=None)

    def requests(self, spec):
        """Placement's allocation candidates for a request."""
        found, _summaries, _version = (
            self.client.get_allocation_candidates(
                self.context,
                utils.ResourceRequest.from_request_spec(spec)))
        self.asked.clear()
        return found

    def candidates(self, spec):
        """The host states that nova-scheduler passes to the weighers."""
        found = self.requests(spec)
        states = []
        for root, name in sorted(self.hosts.items(),
                                 key=lambda item: item[1]):
            state = host_manager.HostState(name, name, CELL)
            state.uuid = root
            state.allocation_candidates = [
                candidate for candidate in found
                if root in candidate['allocations']]
            if state.allocation_candidates:
                states.append(state)
        return states

    def weighers(self):
        """Nova's handler and the weighers, loaded as Nova's HostManager does.
        """
        chooser.shared.cache_clear()
        handler = weights.HostWeightHandler()
        return handler, [weigher() for weigher
                         in handler.get_matching_classes(
                             CONF.filter_scheduler.weight_classes)]

    def order(self, spec, states=None, loaded=None):
        """The weights of the hosts by name, the preferred host first."""
        handler, weighers = loaded or self.weighers()
        weighed = handler.get_weighed_objects(
            weighers, states or self.candidates(spec), spec)
        return {item.obj.host: item.weight for item in weighed}

    def filters(self):
        """Nova's handler and this library's filter, loaded as Nova does."""
        chooser.shared.cache_clear()
        handler = filters.HostFilterHandler()
        return handler, [loaded() for loaded
                         in handler.get_matching_classes([FILTER])]

    def filtered(self, spec, states=None):
        """The hosts that pass this library's filter."""
        handler, loaded = self.filters()
        return handler.get_filtered_objects(
            loaded, states or self.candidates(spec), spec)

    def passed(self, spec, states=None):
        """The hosts and GPUs that pass the filter, in the order of attempts.
        """
        return [(state.host, gpu) for state in self.filtered(spec, states)
                for gpu in self.gpus(state)]

    def gpus(self, state):
        """The GPUs of a host's candidates; Nova claims the first one first."""
        names = (self.client.get(f'/resource_providers/{provider}').json()
                 ['name'] for candidate in state.allocation_candidates
                 for provider in candidate['allocations']
                 if provider != state.uuid)
        return [name.split('_gpu_')[1].split('_')[0] for name in names]

    def first(self, spec):
        """The host that the weigher prefers."""
        return next(iter(self.order(spec)))


def resource_class(profile):
    """The resource class of a profile, as the agent's report names it."""
    return f'CUSTOM_NVIDIA_{profile.upper().replace(".", "_")}'


def in_aggregate(state, **metadata):
    """Put a host into an aggregate."""
    state.aggregates = [types.SimpleNamespace(metadata=metadata)]
