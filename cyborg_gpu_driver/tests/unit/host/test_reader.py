# SPDX-License-Identifier: Apache-2.0

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests.unit.host import base

_1G, _3G = 19, 9


class StaticTest(base.SimulatedTestCase):
    """The static facts of the simulated models."""

    def test_a_whole_machine(self):
        host = self.reader.snapshot()
        self.assertEqual(8, len(host.gpus))
        self.assertIsNone(host.nvml_problem)
        self.assertEqual((), host.problems)
        self.assertEqual(self.machine.host.driver_version,
                         host.driver_version)
        for gpu, expected in zip(host.gpus, self.machine.gpus, strict=True):
            self.assertEqual((), gpu.problems)
            self.assertTrue(gpu.visible_to_nvml)
            self.assertEqual(
                (expected.address, expected.spec.uuid, expected.spec.serial,
                 'ampere', 81920, expected.spec.numa_node),
                (str(gpu.address), gpu.uuid, gpu.serial, gpu.architecture,
                 gpu.memory_mib, gpu.numa_node))

    def test_profiles_are_those_of_the_board(self):
        for name in ('dgx-a100-80', 'a30x4', 'hgx-h200', 'rtxpro6000x8'):
            self.use(name)
            gpu = self.reader.snapshot().gpus[0]
            expected = self.machine.gpus[0].model.mig.profiles
            self.assertEqual(
                {(item.profile_id, item.name, item.slices, item.memory_mib,
                  item.max_instances, item.multiprocessors,
                  item.copy_engines, item.decoders, item.ofa,
                  tuple((start, item.size) for start in sorted(item.starts)))
                 for item in expected},
                {(item.profile_id, item.name, item.slices, item.memory_mib,
                  item.max_instances, item.multiprocessors,
                  item.copy_engines, item.engines.decoders,
                  item.engines.ofa, tuple(
                      (place.start, place.size) for place in item.placements))
                 for item in gpu.mig.profiles}, name)

    def test_vgpu_types_are_those_of_the_board(self):
        self.use('mixed')
        turing, ampere = self.reader.snapshot().gpus[:2]
        for gpu, sim in zip((turing, ampere), self.machine.gpus,
                            strict=False):
            self.assertEqual(
                {(item.type_id, item.name, item.vgpu_class,
                  item.framebuffer_mib, item.max_instances, item.profile_id)
                 for item in sim.model.vgpu_types},
                {(item.type_id, item.name, item.vgpu_class,
                  item.framebuffer_mib, item.max_instances,
                  item.gi_profile_id) for item in gpu.vgpu_types})
        self.assertIn(None, {item.gi_profile_id
                             for item in ampere.vgpu_types})

    def test_gpus_on_nvswitches_that_isolate_nobody(self):
        def open_links():
            return [gpu.nvlink_open for gpu in self.reader.snapshot().gpus]

        self.use('hgx-h100')
        self.assertEqual([''] * 8, open_links())
        self.machine.configure_fabric_manager(mode=0)
        self.assertEqual(['FABRIC_MODE is 0'] * 8, open_links())
        self.assertEqual('FABRIC_MODE is 0', self.reader.gpu(
            self.reader.snapshot().gpus[0].address).nvlink_open)
        # Nothing is known of a GPU that was bound at boot.
        self.machine.stop_persistenced()
        self.nvml.reset()
        self.machine.sriov_manage('ALL', False)
        self.machine.bind_driver(self.machine.gpus[0].address, 'vfio-pci')
        self.assertEqual(['FABRIC_MODE is 0'] * 8, open_links())
        self.machine.remove_fabric_manager()
        for reason in open_links():
            self.assertIn('FABRIC_MODE is not known', reason)
        self.use('h100nvlx2')
        self.assertEqual([''] * 2, open_links())

class BudgetTest(base.SimulatedTestCase):
    """How many NVML calls a snapshot takes once static facts are known."""

    def test_virtual_functions_do_not_multiply_files(self):
        """A second snapshot reads no name, description or availability."""
        self.use('mixed')
        self.reader.snapshot()
        opened = []
        sysfs_open = self.machine.os.open

        def counted(path, *args):
            opened.append(path)
            return sysfs_open(path, *args)

        self.machine.os.open = counted
        gpu = self.reader.snapshot().gpus[1]
        self.assertEqual(20, len(gpu.vfs))
        self.assertEqual([], [path for path in opened
                              if path.endswith(('/name', '/description'))])
        self.assertEqual([], [path for path in opened if 'available' in path
                              and '0000:41' in path])


class DynamicTest(base.SimulatedTestCase):
    """What changes between two snapshots."""

    def test_uuids_of_mig_devices_in_detail(self):
        made = self.cut(self.first, _3G)
        handle = self.nvml.call('nvmlDeviceGetGpuInstanceById',
                                self.device(), made.instance_id)
        self.nvml.call('nvmlGpuInstanceCreateComputeInstance', handle, 2)
        self.assertEqual((), self.gpu().mig.instances[0].mig_uuids)
        uuids = self.gpu(detail=True).mig.instances[0].mig_uuids
        self.assertEqual(1, len(uuids))
        self.assertTrue(uuids[0].startswith('MIG-'))

    def test_mdevs_on_virtual_functions(self):
        self.cut(self.first, _1G)
        vf = self.gpu().vfs[3]
        mig_type = next(item for item in self.gpu().vgpu_types
                        if item.gi_profile_id == _1G)
        name = self.create_mdev(vf.address, mig_type.mdev_type_id)
        after = self.gpu()
        self.assertEqual(
            (model.Mdev(name, vf.address, mig_type.mdev_type_id),),
            after.vfs[3].mdevs)
        self.assertEqual(after.vfs[3].mdevs, after.all_mdevs)
        self.platform.sysfs.write('1', 'bus', 'mdev', 'devices', name,
                                  'remove')
        self.assertEqual((), self.gpu().all_mdevs)

    def test_availability_on_a_gpu_without_virtual_functions(self):
        self.use('t4x4')
        before = {item.type_id: item for item in self.gpu().mdev_types}
        wanted = next(item for item in before.values()
                      if item.name == 'T4-4C')
        self.assertEqual((4, 4096), (wanted.max_instances,
                                     wanted.framebuffer_mib))
        self.assertEqual(4, wanted.available)
        name = self.create_mdev(self.first, wanted.type_id)
        gpu = self.gpu()
        self.assertEqual((model.Mdev(name, self.first, wanted.type_id),),
                         gpu.mdevs)
        after = {item.type_id: item.available for item in gpu.mdev_types}
        self.assertEqual(3, after.pop(wanted.type_id))
        self.assertEqual({0}, set(after.values()))

    def test_availability_on_virtual_functions_with_mig_off(self):
        self.use('mixed')
        address = self.addresses[1]
        self._turn_mig_off(address)
        gpu = self.gpu(address)
        self.assertFalse(gpu.mig.enabled)
        time_sliced = next(item for item in gpu.vgpu_types
                           if item.gi_profile_id is None
                           and item.max_instances > 1)
        self.create_mdev(gpu.vfs[0].address, time_sliced.mdev_type_id)
        gpu = self.gpu(address)
        for how in ({}, {'detail': True}):
            self.assertEqual(
                [0] + [1] * (len(gpu.vfs) - 1),
                [next(item.available for item in vf.mdev_types
                      if item.type_id == time_sliced.mdev_type_id)
                 for vf in self.gpu(address, **how).vfs])

    def _turn_mig_off(self, address):
        self.machine.sriov_manage(str(address), enable=False)
        self.nvml.set_mig_mode(self.device(address), False)
        self.machine.reset_gpu(str(address))
        self.machine.sriov_manage(str(address))

    def test_virtual_functions_come_and_go(self):
        self.assertEqual(20, len(self.gpu().vfs))
        self.machine.sriov_manage(str(self.first), enable=False)
        gpu = self.gpu()
        self.assertEqual(((), 0, model.Framework.NONE, ()),
                         (gpu.vfs, gpu.sriov_numvfs, gpu.framework,
                          gpu.problems))
        self.machine.sriov_manage(str(self.first), count=4)
        gpu = self.gpu()
        self.assertEqual((4, ()), (len(gpu.vfs), gpu.problems))
        self.assertTrue(all(vf.mdev_types for vf in gpu.vfs))
