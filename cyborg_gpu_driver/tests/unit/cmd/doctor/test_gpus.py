# SPDX-License-Identifier: Apache-2.0


"""Checks of GPUs, drivers and the IOMMU, with plain values as input."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import gpus
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

ERROR, WARNING, UNKNOWN = case.ERROR, case.WARNING, case.UNKNOWN
ONE = model.PciAddress.parse('0000:16:00.0')
TWO = model.PciAddress.parse('0000:38:00.0')
VF = model.VirtualFunction(model.PciAddress.parse('0000:16:00.4'), 0,
                           'nvidia', None)
GPU = model.Gpu(ONE, '10de', '20b2', '0302', driver='nvidia',
                visible_to_nvml=True, architecture='ampere', iommu_group=4,
                mig=model.Mig(False, False), sriov_totalvfs=16, vfs=(VF,),
                framework=model.Framework.MDEV_VF)
ON = model.Mig(True, True)
WHOLE = policy.Policy('w', policy.Mode.PASSTHROUGH)
VGPUS = policy.Policy('v', policy.Mode.VGPU, vgpu_types=('A100-40C',))
SLICES = policy.Policy('s', policy.Mode.MIG)
OFF = policy.Policy('o', policy.Mode.OFF)
GROUPS = policy.Policy('g', policy.Mode.NVLINK)


class GpuCase(case.FindingCase):

    def facts(self, policy_, *more, host=(), settings=(), loaded=(),
              kernel=(6, 8), **gpu):
        """Return facts of a host with a changed :data:`GPU` and more GPUs."""
        found = (dataclasses.replace(GPU, **gpu), *more)
        return facts.Facts(
            model.Host(found, **dict(host)),
            policies.Settings((policy_,), **dict(settings)),
            machine=facts.Machine(kernel=kernel,
                                  modules=frozenset(loaded)))


class OfferedTest(GpuCase):

    def test_policies(self):
        other = dataclasses.replace(WHOLE, match_address=(TWO,))
        self.expect(gpus.offered, (
            WARNING, 'no policy matches', self.facts(other)))
        self.silent(
            gpus.offered, self.facts(WHOLE), self.facts(OFF),
            self.facts(other, settings={
                'ignored_addresses': frozenset((ONE,))}))

    def test_ignored_device_that_matches_no_gpu(self):
        for there in ({'ignored_addresses': frozenset({ONE})},
                      {'ignored_uuids': frozenset({'gpu-1'})}):
            self.silent(gpus.offered, self.facts(
                WHOLE, settings=there, uuid='GPU-1'))
        for absent, text in (
                ({'ignored_addresses': frozenset({TWO})}, str(TWO)),
                ({'ignored_uuids': frozenset({'gpu-typo'})}, 'gpu-typo')):
            self.expect(gpus.offered, (
                WARNING, f'ignored_devices has {text}',
                self.facts(WHOLE, settings=absent, uuid='GPU-1')))


class DriverTest(GpuCase):

    def test_kernel_driver(self):
        for name in ('nouveau', 'nova_core', 'nvidiafb'):
            for item in (WHOLE, VGPUS):
                self.expect(gpus.driver, (
                    ERROR, f'"blacklist {name}"',
                    self.facts(item, driver=name)))
        self.expect(
            gpus.driver,
            (ERROR, 'bound to vfio-pci',
             self.facts(VGPUS, driver='vfio-pci')),
            (ERROR, 'bound to no driver', self.facts(SLICES, driver=None)))
        self.silent(
            gpus.driver, self.facts(VGPUS), self.facts(WHOLE),
            self.facts(WHOLE, driver='vfio-pci'),
            self.facts(WHOLE, driver=None),
            self.facts(OFF, driver='nouveau'))

    def test_version(self):
        old = {'driver_version': '535.161.05'}
        self.expect(
            gpus.driver,
            (UNKNOWN, 'supports this kernel',
             self.facts(VGPUS, host={'nvml_problem': 'x'})),
            (ERROR, 'vGPU software 17', self.facts(VGPUS, host=old)))
        self.silent(
            gpus.driver, self.facts(WHOLE, host=old),
            self.facts(VGPUS, host=old, kernel=(6, 7)),
            self.facts(VGPUS, host=old, kernel=None),
            self.facts(VGPUS, host=old, sriov_totalvfs=0),
            self.facts(VGPUS, host={'driver_version': '550.54.16'}),
            dataclasses.replace(self.facts(VGPUS, host=old), machine=None))


class ModulesTest(GpuCase):

    def test_driver_that_may_take_a_gpu(self):
        self.expect(gpus.modules, (
            WARNING, '"blacklist nouveau"',
            self.facts(VGPUS, loaded=('nouveau', 'ext4'))))
        self.silent(
            gpus.modules, self.facts(VGPUS, loaded=('nvidia', 'vfio_pci')),
            self.facts(SLICES), self.facts(OFF, loaded=('nouveau',)),
            self.facts(WHOLE, loaded=('nouveau',), driver='nouveau'))

    def test_display_module_keeps_from_a_reset(self):
        loaded = ('nvidia_drm',)
        self.expect(
            gpus.modules,
            (WARNING, 'modprobe -r nvidia_drm',
             self.facts(SLICES, loaded=loaded)),
            (WARNING, 'modprobe -r nvidia_drm',
             self.facts(VGPUS, loaded=loaded, mig=ON)),
            (WARNING, '580.105.08', self.facts(
                SLICES, loaded=loaded, host={'driver_version': '580.95.05'})))
        self.silent(
            gpus.modules, self.facts(SLICES, loaded=loaded, mig=ON),
            self.facts(SLICES, loaded=loaded, architecture='hopper'),
            self.facts(VGPUS, loaded=loaded),
            self.facts(SLICES, loaded=loaded,
                       host={'driver_version': '580.105.08'}))


class NvmlTest(GpuCase):

    def test_what_could_not_be_read(self):
        for item, driver in ((VGPUS, None), (SLICES, 'vfio-pci'),
                             (WHOLE, 'nvidia')):
            self.expect(gpus.nvml, (
                ERROR, 'the driver is not loaded', self.facts(
                    item, driver=driver,
                    host={'nvml_problem': 'the driver is not loaded'})))
        self.expect(
            gpus.nvml,
            (WARNING, 'the kernel log',
             self.facts(VGPUS, problems=('model: GPU_IS_LOST',))),
            (WARNING, 'the user of cyborg-agent',
             self.facts(VGPUS, problems=('MIG: NO_PERMISSION',))))
        self.silent(gpus.nvml, self.facts(VGPUS),
                    self.facts(OFF, problems=('x',)))


class IommuTest(GpuCase):

    def test_no_group(self):
        self.expect(gpus.iommu, *(
            (ERROR, 'intel_iommu=on', self.facts(item, iommu_group=None))
            for item in (WHOLE, VGPUS, SLICES)), (
            ERROR, 'intel_iommu=on', self.facts(
                WHOLE, iommu_group=None, framework=model.Framework.MDEV_PF)))
        self.silent(
            gpus.iommu, self.facts(OFF, iommu_group=None),
            self.facts(VGPUS, iommu_group=None,
                       framework=model.Framework.MDEV_PF))

    def test_group_that_is_shared(self):
        second = whole.Neighbour(str(TWO), '0302', 'vfio-pci')
        found = self.check(
            ERROR, 'GPU 0000:38:00.0 is in the same IOMMU group, 4',
            gpus.iommu(self.facts(WHOLE, neighbours=(second,))))
        self.assertEqual(str(ONE), found.gpu)
        other = dataclasses.replace(GPU, address=TWO)
        self.silent(
            gpus.iommu, self.facts(GROUPS, neighbours=(second,),
                                   nvlink_peers=(TWO,)),
            self.facts(WHOLE), self.facts(VGPUS, other),
            self.facts(WHOLE, dataclasses.replace(other, iommu_group=5)))

    def test_function_that_the_host_uses(self):
        usb = whole.Neighbour('0000:16:00.2', '0c03', 'xhci_hcd')
        disk = whole.Neighbour('0000:17:00.0', '0108', 'nvme')
        self.expect(
            gpus.iommu,
            (ERROR, '0000:16:00.2 (driver xhci_hcd)', self.facts(
                WHOLE, neighbours=(usb,), driver='vfio-pci')),
            (ERROR, '0000:17:00.0 (driver nvme)',
             self.facts(WHOLE, neighbours=(disk,))))
        self.silent(gpus.iommu, self.facts(WHOLE, neighbours=(usb,)),
                    self.facts(VGPUS, neighbours=(disk,)))


class ReadyTest(GpuCase):

    def test_the_agent_does_it(self):
        whole_gpu = self.facts(WHOLE, vfs=())
        self.expect(
            gpus.ready,
            (WARNING, 'turn MIG mode on', self.facts(SLICES)),
            (WARNING, 'enable virtual functions', self.facts(VGPUS, vfs=())),
            (WARNING, 'gpu prepare 0000:16:00.0', self.facts(WHOLE, mig=ON)),
            (WARNING, 'bind it to vfio-pci', whole_gpu),
            (WARNING, 'bind it to vfio-pci', dataclasses.replace(
                whole_gpu, settings=policies.Settings())))

    def test_the_operator_does_it(self):
        mixed = dataclasses.replace(
            VGPUS, mixed_sizes=True,
            scheduler=model.SchedulerPolicy.EQUAL_SHARE)
        away = {'driver': 'vfio-pci', 'bound_from': 'nvidia',
                'visible_to_nvml': False}
        for words, policy_, gpu in (
                ('sriov-manage -e 0000:16:00.0', VGPUS, {'vfs': ()}),
                ('sriov-manage -d 0000:16:00.0, nvidia-smi -i 0000:16:00.0 '
                 '-mig 1, sriov-manage -e 0000:16:00.0', SLICES, {}),
                ('-shm 1, nvidia-smi vgpu set-scheduler-state', mixed,
                 {'mixed_sizes': False}),
                ('-shm 0', VGPUS, {'mixed_sizes': True}),
                ('-mig 0', VGPUS, {'mig': ON}),
                ('driverctl set-override 0000:16:00.0 vfio-pci', WHOLE,
                 {'vfs': ()}),
                ('driverctl set-override 0000:16:00.0 nvidia', SLICES,
                 {'mig': None, **away})):
            self.expect(gpus.ready, (ERROR, words, self.facts(
                policy_, settings={'prepare': False}, **gpu)))
        self.expect(gpus.ready, (ERROR, 'Set [gpu] policies',
                                 dataclasses.replace(
                                     self.facts(WHOLE),
                                     settings=policies.Settings())))

    def test_mig_mode(self):
        self.expect(
            gpus.ready,
            (ERROR, '[gpu_policy:s]', self.facts(SLICES, mig=None)),
            (WARNING, '--gpu-reset',
             self.facts(SLICES, mig=model.Mig(False, True))))

    def test_nothing_to_say(self):
        self.silent(
            gpus.ready, self.facts(SLICES, mig=ON), self.facts(VGPUS),
            self.facts(WHOLE, vfs=(), driver='vfio-pci', bound_from='nvidia',
                       visible_to_nvml=False), self.facts(OFF, mig=ON),
            self.facts(VGPUS, mig=None),
            # Another check reports GPUs that cannot be read.
            self.facts(SLICES, visible_to_nvml=False),
            self.facts(SLICES, mig=None, problems=('p',)))
