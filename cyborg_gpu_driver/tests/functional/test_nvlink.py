# SPDX-License-Identifier: Apache-2.0

"""Groups of GPUs on the released Cyborg and Placement.

Placement tells for how many servers of a size there is room.
"""

import tempfile

from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import host_files
from demo_lib import nova_part

_CLASS = 'CUSTOM_NVIDIA_NVLINK_{}_H100_80GB_HBM3'
_ALL = {1: 4, 2: 2, 4: 1}
"""Groups of half a board."""


class NvlinkTest(gpu_cloud.GpuTestCase):

    starts_reported = True
    overrides = {'gpu': {'policies': 'linked'},
                 'gpu_policy:linked': {'mode': 'nvlink'}}

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.machine = host_files.write_unprepared(
            directory.name, 'hgx-h100', 4)
        super().setUp()
        self.addCleanup(directory.cleanup)
        self.profiles = {size: self.profile(_CLASS.format(size))
                         for size in _ALL}

    def room(self):
        """Return how many groups of each size a server could get."""
        return {size: len(self.cloud.nova.candidates(profile))
                for size, profile in self.profiles.items()}

    def members(self, server):
        (arq,) = server.arqs
        return nvlink.from_text(arq['attach_handle_info']['addresses'])


    def test_groups_exclude_each_other_before_the_bind_returns(self):
        before = self.everything()
        self.assertEqual(_ALL, self.room())
        pair = self.cloud.bind(self.profiles[2])
        self.assertEqual({1: 2, 2: 1, 4: 0}, self.room())
        self.assertEqual('MDEV', pair.arqs[0]['attach_handle_type'])
        self.assertEqual(2, len(self.members(pair)))
        single = self.cloud.bind(self.profiles[1])
        self.assertEqual({1: 1, 2: 0, 4: 0}, self.room())
        gpus = [gpu for server in (pair, single)
                for gpu in self.members(server)]
        self.assertEqual(3, len(set(gpus)))
        self.assertEqual(2, len(self.world.active_partitions))
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind,
                          self.profiles[4])
        self.report()
        self.assertEqual({1: 1, 2: 0, 4: 0}, self.room())
        for server in (pair, single):
            self.cloud.unbind(server)
        # The GPUs were reset, and each is bound to vfio-pci again.
        self.look_between()
        self.assertEqual(_ALL, self.room())
        self.assertEqual((), self.world.active_partitions)
        self.assertEqual((), self.world.damage)
        after = self.everything()
        for part in ('arqs', 'journal'):
            self.assertEqual(before[part], after[part])
        self.assertEqual(0, self.handles_in_use())
