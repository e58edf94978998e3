# SPDX-License-Identifier: Apache-2.0

"""Compute nodes whose servers the released nova-scheduler places.

Placement is the released one, on loopback. Nova's scheduler queries it,
filters, weighs and claims with its own code. Nova's API database is empty.
This module only plays the part of Nova's cell, which describes the compute
nodes. They differ only in their servers.
"""

from __future__ import annotations

import os
import pathlib
import sys
import uuid
import warnings
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / 'tools'))
# The deprecation warnings of the released services do not concern this
# program.
warnings.simplefilter('ignore')

# If imported before demo_lib, Nova would select eventlet.
import demo_lib  # isort: skip # noqa: E402, F401

import nova.conf  # noqa: E402
import sqlalchemy  # noqa: E402
from keystoneauth1 import adapter  # noqa: E402
from keystoneauth1 import session  # noqa: E402
from keystoneauth1 import token_endpoint  # noqa: E402
from nova import context  # noqa: E402
from nova import exception  # noqa: E402
from nova import objects  # noqa: E402
from nova import rpc  # noqa: E402
from nova.db.api import api as api_db  # noqa: E402
from nova.db.api import models  # noqa: E402
from nova.scheduler import host_manager  # noqa: E402
from nova.scheduler import manager  # noqa: E402
from nova.scheduler.client import report  # noqa: E402
from oslo_messaging.rpc import dispatcher  # noqa: E402

from cyborg_gpu_driver.nova.scheduling import chooser  # noqa: E402
from demo_lib import client as demo_client  # noqa: E402
from demo_lib import configfile  # noqa: E402
from demo_lib import database as demo_database  # noqa: E402
from demo_lib import placement_service  # noqa: E402

CONF = nova.conf.CONF
VERSION = '1.38'
PROJECT, USER = demo_client.PROJECT, demo_client.USER
_GPU_FILTER = 'cyborg_gpu_driver.nova.filter.GpuFilter'
_NOVA_WEIGHERS = 'nova.scheduler.weights.all_weighers'
_GPU_WEIGHER = 'cyborg_gpu_driver.nova.weigher.GpuWeigher'
_MEMORY_MB = 1 << 20
_SERVER_MB = 512
_CELL = '9f2c1c44-6b0e-4a43-9f6c-0f0e5d2f7b11'


class Hosts(host_manager.HostManager):
    """Nova's host manager, without Nova's databases.

    :param names: the name of each host, by the UUID of its provider.
    :param servers: the number of servers of each host, by the same UUID.
    """

    def __init__(self, names: dict[str, str], servers: dict[str, int]):
        self._names, self._servers = names, servers
        super().__init__()

    def get_host_states_by_uuids(self, _context, compute_uuids, _spec):
        """Yield the compute nodes as their last updates would describe them.
        """
        for root in compute_uuids:
            if root not in self._names:
                continue
            name = self._names[root]
            state = host_manager.HostState(name, name, _CELL)
            state.uuid = root
            state.cpu_allocation_ratio = state.ram_allocation_ratio = 1.0
            state.disk_allocation_ratio = 1.0
            state.total_usable_ram_mb = _MEMORY_MB
            state.num_instances = self._servers[root]
            state.vcpus_total, state.vcpus_used = 1 << 10, self._servers[root]
            state.free_ram_mb = (_MEMORY_MB
                                 - _SERVER_MB * self._servers[root])
            yield state


class Cloud:
    """A running Placement and nova-scheduler; :meth:`close` ends both.

    :param directory: an empty directory.
    :param templates: databases to copy.
    :param names: the names of the compute nodes.
    :param is_weighed: whether GpuWeigher and GpuFilter are also enabled.
    """

    def __init__(self, directory: str, templates, names, is_weighed):
        self._directory = directory
        _cyborg, of_placement = templates.copy(directory)
        self._service = placement_service.PlacementService(
            directory, of_placement)
        self._database = _api_database(directory)
        self.roots = {name: str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
                      for name in names}
        self._servers = dict.fromkeys(self.roots.values(), 0)
        self._homes = {}
        self._made = set()
        self._context = context.RequestContext(USER, PROJECT, is_admin=True)
        self.client = report.SchedulerReportClient(adapter.Adapter(
            session.Session(token_endpoint.Token(
                self._service.url, 'admin')),
            service_type='placement', raise_exc=False))
        try:
            for name in names:
                self._create_compute_node(name)
            self._scheduler = self._start_scheduler(is_weighed)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The URL of Placement."""
        return self._service.url

    def close(self) -> None:
        """Stop Placement, and remove what Nova has cached of its answers."""
        report.PLACEMENTCLIENT = None
        chooser.shared.cache_clear()
        if rpc.TRANSPORT is not None:
            rpc.cleanup()
        CONF.reset()
        self._database.detach()
        self._service.stop()

    def _start_scheduler(self, is_weighed):
        CONF([], project='nova', default_config_files=[configfile.write(
            os.path.join(self._directory, 'nova.conf'), {
                'DEFAULT': {'transport_url': 'fake://'},
                'filter_scheduler': {
                    'available_filters': _GPU_FILTER,
                    'enabled_filters': ['GpuFilter'] if is_weighed else [],
                    'weight_classes': [
                        _NOVA_WEIGHERS,
                        *([_GPU_WEIGHER] if is_weighed else [])],
                    'track_instance_changes': False},
                # As the documentation advises for hosts with GPUs.
                'gpu_weigher': {'gpu_weight_multiplier': 10.0}})])
        # Nothing is cached, so that the speed of this machine does not
        # matter.
        chooser.CACHE_SECONDS = 0.0
        objects.register_all()
        rpc.init(CONF)
        chooser.shared.cache_clear()
        report.PLACEMENTCLIENT = self.client
        with mock.patch.object(
                host_manager, 'HostManager', lambda: Hosts(
                    {root: name for name, root in self.roots.items()},
                    self._servers)):
            return manager.SchedulerManager()

    def schedule(self, resource_class: str) -> tuple[str, str] | None:
        """Let Nova place a server with one unit of a class and claim for it.

        :returns: the server's UUID, and the UUID of the provider of the
            unit; None if there is no valid host.
        """
        server = str(uuid.uuid4())
        try:
            ((selection, *_),) = self._scheduler.select_destinations(
                self._context, spec_obj=self._spec(server, resource_class),
                instance_uuids=[server], return_objects=True)
        except dispatcher.ExpectedException as error:
            if not isinstance(error.exc_info[1], exception.NoValidHost):
                raise
            return None
        claimed = self._json('get', f'/allocations/{server}')['allocations']
        (provider,) = (found for found, what in claimed.items()
                       if resource_class in what['resources'])
        self._homes[server] = selection.compute_node_uuid
        self._servers[selection.compute_node_uuid] += 1
        return server, provider

    def delete(self, server: str) -> None:
        """Delete a server and its allocations."""
        self._servers[self._homes.pop(server)] -= 1
        self._json('delete', f'/allocations/{server}')

    def allocations(self) -> int:
        """Return how many units of all GPUs are in use in Placement."""
        providers = self._json('get', '/resource_providers')
        return sum(
            sum(self._json('get', f'/resource_providers/{item["uuid"]}'
                           '/usages')['usages'].values())
            for item in providers['resource_providers']
            if item['uuid'] not in self._servers)

    def publish(self, host: str, name: str, resource_class: str, total: int,
                traits=(), provider: str | None = None) -> str:
        """Create a provider below a compute node, and return its UUID."""
        provider = provider or str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        self._json('post', '/resource_providers', {
            'name': name, 'uuid': provider,
            'parent_provider_uuid': self.roots[host]})
        self._make(f'/resource_classes/{resource_class}')
        self._json('put', f'/resource_providers/{provider}/inventories', {
            'resource_provider_generation': 0,
            'inventories': {resource_class: {
                'total': total, 'max_unit': 1}}})
        for trait in traits:
            if trait.startswith('CUSTOM_'):
                self._make(f'/traits/{trait}')
        self._json('put', f'/resource_providers/{provider}/traits', {
            'resource_provider_generation': 1, 'traits': [*traits]})
        return provider

    def _create_compute_node(self, name):
        root = self.roots[name]
        self._json('post', '/resource_providers',
                   {'name': name, 'uuid': root})
        self._json('put', f'/resource_providers/{root}/inventories', {
            'resource_provider_generation': 0, 'inventories': {
                'VCPU': {'total': 1 << 10},
                'MEMORY_MB': {'total': _MEMORY_MB}}})
        self._json('put', f'/resource_providers/{root}/traits', {
            'resource_provider_generation': 1,
            'traits': ['COMPUTE_ACCELERATORS', 'COMPUTE_NODE']})

    def _spec(self, server, resource_class):
        # The group of a device profile is separate from that of the flavor.
        return objects.RequestSpec(
            context=self._context, flavor=objects.Flavor(
                vcpus=1, memory_mb=_SERVER_MB, root_gb=0, ephemeral_gb=0,
                swap=0, name='gpu', extra_specs={
                    'accel:device_profile': resource_class,
                    'group_policy': 'none'}),
            image=objects.ImageMeta.from_dict({}), is_bfv=True,
            requested_resources=[objects.RequestGroup(
                requester_id='device_profile_0', use_same_provider=True,
                required_traits=set(), forbidden_traits=set(), aggregates=[],
                forbidden_aggregates=set(), in_tree=None,
                resources={resource_class: 1})],
            requested_networks=objects.NetworkRequestList(objects=[]),
            request_level_params=objects.RequestLevelParams(),
            instance_uuid=server, num_instances=1, project_id=PROJECT,
            user_id=USER, instance_group=None, numa_topology=None,
            pci_requests=None, ignore_hosts=None, force_hosts=None,
            force_nodes=None, requested_destination=None,
            security_groups=objects.SecurityGroupList(objects=[]),
            scheduler_hints={}, retry=None, limits=None,
            availability_zone=None)

    def _make(self, url):
        if url not in self._made:
            self._made.add(url)
            self._json('put', url)

    def _json(self, method, url, body=None):
        """Return Placement's answer to a request that is not Nova's.

        :raises RuntimeError: if Placement refuses.
        """
        arguments = (body,) if method in ('post', 'put') else ()
        response = getattr(self.client, method)(
            url, *arguments, version=VERSION)
        if response.status_code >= 400:
            raise RuntimeError(f'{method} {url}: {response.text}')
        return response.json() if response.content else None


def _api_database(directory):
    """Create Nova's API database with Nova's schema and no rows."""
    path = os.path.join(directory, 'nova-api.sqlite')
    engine = sqlalchemy.create_engine(demo_database.url(path))
    models.BASE.metadata.create_all(engine)
    engine.dispose()
    return demo_database.Attached(api_db.context_manager, path)
