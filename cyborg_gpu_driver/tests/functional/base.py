# SPDX-License-Identifier: Apache-2.0


"""The cloud that functional tests run on, and their base class."""

from __future__ import annotations

import functools
import inspect
import os

import fixtures
from futurist import _thread
from oslotest import base

from cyborg_gpu_driver import cyborg_hooks
from cyborg_gpu_driver.tests.functional import kept
from cyborg_gpu_driver.tests.functional import placement_content
from demo_lib import cloud
from demo_lib import database

# When an RPC server stops, its threads end after they have waited this long
# for work. Each test waits for the threads of two servers.
_thread.ThreadWorker.MAX_IDLE_FOR = 0.05


TEMPLATES = 'CYBORG_GPU_TEMPLATES'
"""Environment variable: directory of databases to copy. Without it, they are
kept for all that run the tests with these versions of the services."""


@functools.cache
def make_templates() -> database.Templates:
    """Return databases to copy, which are made once for all processes."""
    directory = os.environ.get(TEMPLATES) or kept.find(
        'templates', kept.services() + inspect.getsource(database),
        lambda directory: database.Templates(directory).make())
    return database.Templates(directory)


class CloudFixture(fixtures.Fixture):
    """The released Placement and Cyborg around one compute node.

    ``cloud`` is a :class:`demo_lib.cloud.Cloud`. The parts of
    it that tests use most are attributes here. Nothing runs periodically:
    call :meth:`report`.

    :param host: name of the compute node.
    :param simulate: simulated machine for ``[gpu] simulate``; None leaves
        the option out.
    :param drivers: ``[agent] enabled_drivers``; this library's driver
        unless given.
    :param overrides: more options of cyborg.conf, as
        ``{group: {option: value}}``.
    :param templates: copies the initial databases, as
        ``database.Templates`` does; empty databases unless given.
    """

    def __init__(self, host='compute1', simulate=None, drivers=None,
                 overrides=None, templates=None):
        super().__init__()
        self._templates = templates
        self._host = host
        self._drivers = drivers or ['cyborg_gpu_driver']
        self._overrides = {group: dict(options) for group, options
                           in (overrides or {}).items()}
        if simulate is not None:
            self._overrides.setdefault('gpu', {})['simulate'] = simulate

    def _setUp(self):
        self.directory = self.useFixture(fixtures.TempDir()).path
        gpu = self._overrides.setdefault('gpu', {})
        gpu.setdefault('state_path', self.directory)
        # Its thread would outlive the test and get events of the next
        # test's GPUs.
        gpu.setdefault('health_events', False)
        # Tests call Agent.look_between where they need it.
        gpu.setdefault('clean_poll_interval', 0)
        self.cloud = cloud.Cloud(self.directory,
                                 self._templates or make_templates(),
                                 self._host, self._drivers, self._overrides)
        self.addCleanup(self.cloud.stop)
        self.addCleanup(cyborg_hooks.remove)
        self.placement = placement_content.Placement(
            self.cloud.placement.url,
            os.path.join(self.directory, 'placement.sqlite'))
        self.cyborg = self.cloud.cyborg
        self.nova = self.cloud.nova
        self.conductor = self.cloud.conductor
        self.agent = self.cloud.agent

    def report(self):
        """Let the agent discover and report now."""
        self.cloud.report()

    def provider(self, name):
        """Return the provider of that name.

        :raises KeyError: with the names of the existing providers.
        """
        providers = self.placement.providers()
        if name not in providers:
            raise KeyError(f'{name}: there are {sorted(providers)}')
        return providers[name]

    def inventory(self, name):
        """Return ``(resource class, its inventory)`` of a named provider."""
        inventories = self.placement.inventories(self.provider(name)['uuid'])
        (item,) = inventories.items()
        return item

    def bind(self, device_profile, **kwargs):
        """Create a server; see ``NovaPart.create_server``."""
        return self.nova.create_server(device_profile, **kwargs)

    def unbind(self, server):
        """Delete a server that :meth:`bind` created."""
        self.nova.delete_server(server.uuid)


class TestCase(base.BaseTestCase):
    """A test on the released services."""

    def use_cloud(self, **kwargs):
        """Start a cloud that lasts for this test."""
        return self.useFixture(CloudFixture(**kwargs))
