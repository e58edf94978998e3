# SPDX-License-Identifier: Apache-2.0

"""A GPU that becomes unhealthy under the released Cyborg and Placement."""

import queue
import threading

from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import gpu_cloud
from demo_lib import nova_part

GPU = '0000:07:00.0'
OTHER = '0000:0f:00.0'
FATAL = 79
"""The XID of a GPU that has fallen off the bus."""
_THREAD = 'cyborg-gpu-events'
APPLICATION = 31
"""The XID of a program that accessed memory which is not its own."""


class UnhealthyTest(gpu_cloud.GpuTestCase):

    starts_reported = True
    clean_checks = 2
    overrides = {'gpu': {'policies': 'slices'},
                 'gpu_policy:slices': {'mode': 'mig',
                                       'profiles': '3g.40gb'}}

    def everything_reserved(self, gpu=GPU):
        return all(total == reserved for total, reserved
                   in self.reserved(gpu).values())

    def traits(self, gpu=GPU):
        return [trait for trait in self.cloud.placement.traits(
            self.cloud.provider(self.name('3g.40gb', gpu))['uuid'])
            if trait.startswith('CUSTOM_GPU_UNHEALTHY')]

    def test_a_lost_gpu_disturbs_no_other_and_comes_back(self):
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_3G_40GB'))
        self.world.lose_gpu(OTHER)
        self.report()
        self.assertTrue(self.everything_reserved(OTHER))
        self.assertFalse(self.everything_reserved(GPU))
        self.assertEqual(2, len(self.cloud.cyborg.devices()))
        self.world.find_gpu(OTHER)
        for _ in range(3):
            self.report()
        self.assertFalse(self.everything_reserved(OTHER))
        self.cloud.unbind(server)
        self.report()
        self.assertEqual(self.untouched['placement'],
                         self.cloud.placement.snapshot())

    def test_an_unhealthy_gpu_in_use_is_left_alone(self):
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_3G_40GB'))
        where = server.providers[0]
        gpu = next(name.rpartition('_gpu_')[2][:len(GPU)]
                   for name, provider
                   in self.cloud.placement.providers().items()
                   if provider['uuid'] == where)
        before = self.mdevs(gpu)
        self.world.set_health(gpu, uncorrected=1)
        self.report()
        # One of the two slices is the server's own.
        self.assertEqual({'3g.40gb': (2, 1)}, self.reserved(gpu))
        self.assertEqual(before, self.mdevs(gpu))
        self.assertEqual([], self.traits(gpu))
        self.cloud.unbind(server)
        self.assertEqual({}, self.mdevs(gpu))
        self.report()
        self.assertEqual(1, len(self.traits(gpu)))
        self.assertTrue(self.everything_reserved(gpu))


class EventTest(gpu_cloud.GpuTestCase):
    """Events of NVML between two reports of the agent."""

    starts_reported = True
    overrides = {'gpu': {'policies': 'slices', 'health_events': True},
                 'gpu_policy:slices': {'mode': 'mig',
                                       'match_address': f'{GPU},{OTHER}',
                                       'profiles': '3g.40gb'}}

    def setUp(self):
        super().setUp()
        agent = self.driver._running()
        # For tests that wait for a write: only GpuHealth's own are noted.
        self.written = queue.Queue()
        publisher = agent.publisher
        write = publisher._write

        def write_and_tell(address, generations):
            write(address, generations)
            if generations is None:
                self.written.put(str(address))

        publisher._write = write_and_tell

    def test_reserved_at_once(self):
        world = self.world
        profile = self.profile('CUSTOM_NVIDIA_3G_40GB')
        world.raise_xid(GPU, APPLICATION)
        world.raise_xid(GPU, FATAL)
        self.assertEqual(GPU, self.written.get(timeout=scope.HANG))
        self.assertEqual({'3g.40gb': (2, 2)}, self.reserved())
        self.assertEqual({'3g.40gb': (2, 0)}, self.reserved(OTHER))
        world.raise_xid(OTHER, FATAL)
        self.assertEqual(OTHER, self.written.get(timeout=scope.HANG))
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind, profile)

    def test_a_gpu_whose_lock_is_held_is_closed_all_the_same(self):
        world = self.world
        with locks.gpu(self.state_path, model.PciAddress.parse(GPU)):
            world.raise_xid(GPU, FATAL)
            world.raise_xid(OTHER, FATAL)
            self.assertEqual({GPU, OTHER}, {
                self.written.get(timeout=scope.HANG) for _ in range(2)})
            for gpu in (GPU, OTHER):
                self.assertEqual({'3g.40gb': (2, 2)}, self.reserved(gpu))
            # The holder of the lock may want to have NVML alone.
            with self.driver._running().platform.nvml.alone():
                self.assertEqual({}, self.driver._running()
                                 ._watcher._set.members)

    def test_the_end_of_the_agent_ends_its_threads(self):
        self.assertIn(_THREAD, self.threads())
        self.cloud.cloud.stop()
        self.assertNotIn(_THREAD, self.threads())

    def threads(self):
        return [thread.name for thread in threading.enumerate()]
