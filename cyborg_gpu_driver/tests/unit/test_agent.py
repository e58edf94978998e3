# SPDX-License-Identifier: Apache-2.0

"""How the parts of an agent work together."""

import contextlib
import gc
import json
import os
import threading
import uuid

import fixtures
import pynvml
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import agent
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.record import gpu as record_gpu
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import empty_placement
from cyborg_gpu_driver.tests import unreadable


class AgentCase(base.BaseTestCase):

    host = 'a30x4'
    options: dict = {}

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.conf = conf = cfg.ConfigOpts()
        gpu_conf.register_opts(conf)
        conf([], default_config_files=[])
        conf.set_override('simulate', self.host, group='gpu')
        conf.set_override('state_path', self.state_path, group='gpu')
        conf.set_override('health_events', False, group='gpu')
        if self.options:
            conf.set_override('policies', ['p'], group='gpu')
            gpu_conf.register_policy(conf, 'p')
            for name, value in self.options.items():
                conf.set_override(name, value, group='gpu_policy:p')
        self.start()
        self.devices = self.agent.report()
        self.addCleanup(self.end)

    def start(self):
        self.agent = agent.Agent(self.conf, policies.read(self.conf),
                                 'host1', empty_placement.EmptyPlacement)

    def end(self):
        """End as a process does."""
        self.agent.stop()
        pynvml.nvmlLib.machine.uninstall()

    def unreadable(self, address):
        """Make the record of a GPU unreadable."""
        return unreadable.file(store.of(self.state_path).path(address))

    def handle(self, device=None):
        """Return the arguments of Cyborg's calls for one handle."""
        deployable = (device or self.devices[0]).deployables[0]
        handle = deployable.handles[0]
        return str(handle.address), handle.asked_type, str(uuid.uuid4())


class TestAgent(AgentCase):

    def test_nothing_is_left_of_many_binds(self):
        # Files of earlier tests must not be closed in between.
        gc.collect()
        found = []
        for rounds in (2, 8):
            for _ in range(rounds):
                asked = self.handle()
                self.agent.bind(*asked)
                self.agent.unbind(*asked)
            found.append((len(os.listdir('/proc/self/fd')), sorted(
                os.path.join(directory, name) for directory, _, names
                in os.walk(self.state_path) for name in names)))
        self.assertEqual(*found)
        self.assertFalse([
            thread.name for thread in threading.enumerate()
            if 'handle' in thread.name])
        self.assertEqual((), store.Store(self.state_path).claims())

    def test_a_record_that_cannot_be_read_affects_its_gpu_only(self):
        address = self.devices[1].address
        with self.unreadable(address):
            for _ in range(2):
                self.assertEqual(
                    {device.address: device.address == address
                     for device in self.devices},
                    {device.address: device.stub
                     for device in self.agent.report()})
                asked = self.handle()
                self.agent.bind(*asked)
                self.agent.unbind(*asked)
        self.assertEqual(self.devices, self.agent.report())

    def test_a_report_waits_once_for_all_held_gpus(self):
        asked = []
        lock = locks._lock

        def note(path, name, what, seconds, purpose=''):
            asked.append(seconds)
            return lock(path, name, what, seconds, purpose)

        self.patch(locks, 'REPORT_SECONDS', 0.2)
        with contextlib.ExitStack() as held:
            for device in self.devices:
                held.enter_context(locks.gpu(self.state_path,
                                             device.address))
            self.patch(locks, '_lock', note)
            thread = threading.Thread(target=self.agent.report)
            thread.start()
            thread.join()
        self.assertEqual(
            [0.2] + [0.0] * (len(self.devices) - 1),
            [seconds for seconds in asked if seconds <= 0.2])

    def test_a_condition_that_comes_back_is_logged_again(self):
        log = self.useFixture(fixtures.FakeLogger('cyborg_gpu_driver.agent'))
        found = []
        for complaints in (('wrong',), ('wrong',), (), ('wrong',)):
            self.patch(self.agent.live, 'complaints',
                       lambda gpu, known=complaints: known)
            self.agent.report()
            found.append(log.output.count('wrong'))
        self.assertEqual([1, 1, 1, 2], found)

    def test_what_an_instance_had_goes_with_it(self):
        # The next instance may get the same placement and ID.
        asked = self.handle()
        self.agent.bind(*asked)
        (entry,) = store.Store(self.state_path).claims()
        records = store.of(self.state_path)
        records.put(entry.gpu, health=record_gpu.HealthRecord(
            entry.boot, None, (health.Condition(
                'XID_95', 1.0, 2.0, placement=entry.placement,
                instance_id=entry.instance_id),)))
        self.agent.unbind(*asked)
        self.assertIsNone(records.read(entry.gpu).health)


class TestBetweenReports(AgentCase):

    options = {'mode': 'auto', 'roles': ['passthrough', 'mig']}

    def start(self):
        self.looked = threading.Event()
        self.patch(agent.Agent, 'look_between',
                   lambda _agent: self.looked.set())
        self.conf.set_override('clean_poll_interval', 3600, group='gpu')
        super().start()

    def test_an_unbind_wakes_the_thread_of_the_agent(self):
        asked = next(
            (str(handle.address), handle.asked_type, str(uuid.uuid4()))
            for item in self.devices[0].deployables
            for handle in item.handles if item.offer.profile == '1g.6gb')
        self.agent.bind(*asked)
        self.assertFalse(self.looked.is_set())
        self.agent.unbind(*asked)
        self.assertTrue(self.looked.wait(60))


class TestAgentOfGroups(AgentCase):

    bridges = (('0000:17:00.0', '0000:65:00.0'),
               ('0000:98:00.0', '0000:ca:00.0'))
    options = {'mode': 'nvlink', 'nvlink_sizes': [2]}

    @property
    def host(self):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'host')
        with open(path, 'w', encoding='utf-8') as stream:
            # JSON is YAML.
            json.dump({'driver_version': '570.124.03',
                       'gpus': [
                           {'model': 'h100-nvl', 'address': one,
                            'numa_node': 0, 'nvlink': [other] * 12}
                           for pair in self.bridges
                           for one, other in (pair, pair[::-1])]}, stream)
        return path

    def test_a_record_that_cannot_be_read_affects_its_group_only(self):
        with self.unreadable(self.bridges[1][1]):
            # Another process, which has not read the GPUs before.
            self.end()
            self.start()
            for _ in range(2):
                self.check_groups()

    def check_groups(self):
        """Assert that the first group can be bound, and the second stays."""
        first, second = self.devices[0], self.devices[1]
        found = {device.address: device for device in self.agent.report()}
        self.assertEqual(first, found[first.address])
        self.assertIn(second.address, found)
        asked = self.handle()
        self.agent.bind(*asked)
        self.agent.unbind(*asked)
        self.assertRaises(exception.JournalUnreadable, self.agent.bind,
                          *self.handle(second))
        (offer,) = self.agent.live.offers(self.agent.live.gpu(
            second.address))
        self.assertEqual(0, offer.creatable)
