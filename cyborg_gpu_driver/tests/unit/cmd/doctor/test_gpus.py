# SPDX-License-Identifier: Apache-2.0


"""Checks of GPUs, drivers and the IOMMU, with plain values as input."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.cmd.doctor.rules import gpus
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

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

    def fails(self, words, findings):
        return self.check(finding.Severity.ERROR, words, findings)

    def warns(self, words, findings):
        return self.check(finding.Severity.WARNING, words, findings)

    def says_nothing(self, check, *found):
        for item in found:
            self.assertEqual([], list(check(item)))


class OfferedTest(GpuCase):

    def test_no_policy(self):
        other = dataclasses.replace(WHOLE, match_address=(TWO,))
        self.warns('no policy matches', gpus.offered(self.facts(other)))

    def test_offered_off_or_ignored(self):
        other = dataclasses.replace(WHOLE, match_address=(TWO,))
        self.says_nothing(
            gpus.offered, self.facts(WHOLE), self.facts(OFF),
            self.facts(other, settings={
                'ignored_addresses': frozenset((ONE,))}))


class DriverTest(GpuCase):

    def test_drivers_of_the_kernel(self):
        for name in ('nouveau', 'nova_core', 'nvidiafb'):
            for item in (WHOLE, VGPUS):
                self.fails(f'"blacklist {name}"', gpus.driver(
                    self.facts(item, driver=name)))

    def test_vgpus_need_nvidias(self):
        self.fails('bound to vfio-pci', gpus.driver(
            self.facts(VGPUS, driver='vfio-pci')))
        self.fails('bound to no driver', gpus.driver(
            self.facts(SLICES, driver=None)))

    def test_version_that_is_not_known(self):
        self.check(
            finding.Severity.UNKNOWN, 'supports this kernel',
            gpus.driver(self.facts(VGPUS, host={'nvml_problem': 'x'})))

    def test_driver_that_is_too_old_for_the_kernel(self):
        old = {'driver_version': '535.161.05'}
        self.fails('vGPU software 17', gpus.driver(
            self.facts(VGPUS, host=old)))
        self.says_nothing(
            gpus.driver, self.facts(WHOLE, host=old),
            self.facts(VGPUS, host=old, kernel=(6, 7)),
            self.facts(VGPUS, host=old, kernel=None),
            self.facts(VGPUS, host=old, sriov_totalvfs=0),
            self.facts(VGPUS, host={'driver_version': '550.54.16'}),
            dataclasses.replace(self.facts(VGPUS, host=old), machine=None))

    def test_nothing_to_say(self):
        self.says_nothing(
            gpus.driver, self.facts(VGPUS), self.facts(WHOLE),
            self.facts(WHOLE, driver='vfio-pci'),
            self.facts(WHOLE, driver=None),
            self.facts(OFF, driver='nouveau'))


class ModulesTest(GpuCase):

    def test_driver_that_may_take_a_gpu(self):
        self.warns('"blacklist nouveau"', gpus.modules(
            self.facts(VGPUS, loaded=('nouveau', 'ext4'))))

    def test_display_module_keeps_from_a_reset(self):
        loaded = ('nvidia_drm',)
        self.warns('modprobe -r nvidia_drm', gpus.modules(
            self.facts(SLICES, loaded=loaded)))
        self.warns('modprobe -r nvidia_drm', gpus.modules(
            self.facts(VGPUS, loaded=loaded, mig=ON)))
        self.says_nothing(
            gpus.modules, self.facts(SLICES, loaded=loaded, mig=ON),
            self.facts(SLICES, loaded=loaded, architecture='hopper'),
            self.facts(VGPUS, loaded=loaded),
            self.facts(SLICES, loaded=loaded,
                       host={'driver_version': '580.105.08'}))
        self.warns('580.105.08', gpus.modules(self.facts(
            SLICES, loaded=loaded, host={'driver_version': '580.95.05'})))

    def test_nothing_to_say(self):
        self.says_nothing(
            gpus.modules, self.facts(VGPUS, loaded=('nvidia', 'vfio_pci')),
            self.facts(SLICES),
            self.facts(OFF, loaded=('nouveau',)),
            self.facts(WHOLE, loaded=('nouveau',), driver='nouveau'))


class NvmlTest(GpuCase):

    problem = {'nvml_problem': 'the driver is not loaded'}

    def test_needed(self):
        for item, driver in ((VGPUS, None), (SLICES, 'vfio-pci'),
                             (WHOLE, 'nvidia')):
            self.fails('the driver is not loaded', gpus.nvml(
                self.facts(item, host=self.problem, driver=driver)))

    def test_what_could_not_be_read(self):
        self.warns('the kernel log', gpus.nvml(
            self.facts(VGPUS, problems=('model: GPU_IS_LOST',))))
        self.warns('the user of cyborg-agent', gpus.nvml(
            self.facts(VGPUS, problems=('MIG: NO_PERMISSION',))))

    def test_nothing_to_say(self):
        self.says_nothing(gpus.nvml, self.facts(VGPUS),
                          self.facts(OFF, problems=('x',)))


class IgnoredTest(GpuCase):

    def test_device_that_matches_no_gpu(self):
        for there in ({'ignored_addresses': frozenset({ONE})},
                      {'ignored_uuids': frozenset({'gpu-1'})}):
            self.says_nothing(gpus.offered, self.facts(
                WHOLE, settings=there, uuid='GPU-1'))
        for absent, text in (
                ({'ignored_addresses': frozenset({TWO})}, str(TWO)),
                ({'ignored_uuids': frozenset({'gpu-typo'})}, 'gpu-typo')):
            self.warns(f'ignored_devices has {text}', gpus.offered(
                self.facts(WHOLE, settings=absent, uuid='GPU-1')))


class IommuTest(GpuCase):

    def test_no_group(self):
        for item in (WHOLE, VGPUS, SLICES):
            self.fails('intel_iommu=on', gpus.iommu(
                self.facts(item, iommu_group=None)))
        self.fails('intel_iommu=on', gpus.iommu(self.facts(
            WHOLE, iommu_group=None, framework=model.Framework.MDEV_PF)))

    def test_group_that_is_shared(self):
        second = whole.Neighbour(str(TWO), '0302', 'vfio-pci')
        found = self.fails('GPU 0000:38:00.0 is in the same IOMMU group, 4',
                           gpus.iommu(self.facts(WHOLE, neighbours=(second,))))
        self.assertEqual(str(ONE), found.gpu)
        self.says_nothing(gpus.iommu, self.facts(
            GROUPS, neighbours=(second,), nvlink_peers=(TWO,)))

    def test_function_that_the_host_uses(self):
        usb = whole.Neighbour('0000:16:00.2', '0c03', 'xhci_hcd')
        self.fails('0000:16:00.2 (driver xhci_hcd)', gpus.iommu(self.facts(
            WHOLE, neighbours=(usb,), driver='vfio-pci')))
        self.says_nothing(gpus.iommu, self.facts(WHOLE, neighbours=(usb,)))
        disk = whole.Neighbour('0000:17:00.0', '0108', 'nvme')
        self.fails('0000:17:00.0 (driver nvme)', gpus.iommu(self.facts(
            WHOLE, neighbours=(disk,))))
        self.says_nothing(gpus.iommu, self.facts(VGPUS, neighbours=(disk,)))

    def test_nothing_to_say(self):
        second = dataclasses.replace(GPU, address=TWO)
        self.says_nothing(
            gpus.iommu, self.facts(WHOLE), self.facts(VGPUS, second),
            self.facts(WHOLE, dataclasses.replace(second, iommu_group=5)),
            self.facts(VGPUS, iommu_group=None,
                       framework=model.Framework.MDEV_PF),
            self.facts(OFF, iommu_group=None))


class ReadyTest(GpuCase):

    def test_the_agent_does_it(self):
        self.warns('turn MIG mode on', gpus.ready(self.facts(SLICES)))
        self.warns('enable virtual functions', gpus.ready(
            self.facts(VGPUS, vfs=())))
        self.warns('gpu prepare 0000:16:00.0', gpus.ready(
            self.facts(WHOLE, mig=ON)))

    def test_the_operator_does_it(self):
        by_hand = {'prepare': False}
        self.fails('sriov-manage -e 0000:16:00.0', gpus.ready(
            self.facts(VGPUS, vfs=(), settings=by_hand)))
        self.fails(
            'sriov-manage -d 0000:16:00.0, nvidia-smi -i 0000:16:00.0 -mig '
            '1, sriov-manage -e 0000:16:00.0',
            gpus.ready(self.facts(SLICES, settings=by_hand)))
        without = dataclasses.replace(
            self.facts(WHOLE), settings=policies.Settings())
        self.fails('Set [gpu] policies', gpus.ready(without))

    def test_each_step_has_a_command(self):
        mixed = dataclasses.replace(
            VGPUS, mixed_sizes=True,
            scheduler=model.SchedulerPolicy.EQUAL_SHARE)
        self.fails('-shm 1, nvidia-smi vgpu set-scheduler-state', gpus.ready(
            self.facts(mixed, mixed_sizes=False,
                       settings={'prepare': False})))
        self.fails('-shm 0', gpus.ready(
            self.facts(VGPUS, mixed_sizes=True,
                       settings={'prepare': False})))
        self.fails('-mig 0', gpus.ready(
            self.facts(VGPUS, mig=ON, settings={'prepare': False})))

    def test_no_mig(self):
        self.fails('[gpu_policy:s]', gpus.ready(
            self.facts(SLICES, mig=None)))

    def test_reset_is_due(self):
        self.warns('--gpu-reset', gpus.ready(
            self.facts(SLICES, mig=model.Mig(False, True))))

    def test_nothing_to_say(self):
        self.says_nothing(
            gpus.ready, self.facts(SLICES, mig=ON), self.facts(VGPUS),
            self.facts(WHOLE, vfs=(), driver='vfio-pci', bound_from='nvidia',
                       visible_to_nvml=False), self.facts(OFF, mig=ON),
            self.facts(VGPUS, mig=None))

    def test_a_whole_gpu_is_to_be_bound(self):
        gpu = self.facts(WHOLE, vfs=())
        self.warns('bind it to vfio-pci', gpus.ready(gpu))
        self.warns('bind it to vfio-pci', gpus.ready(
            dataclasses.replace(gpu, settings=policies.Settings())))
        self.fails('driverctl set-override 0000:16:00.0 vfio-pci',
                   gpus.ready(self.facts(WHOLE, vfs=(),
                                         settings={'prepare': False})))

    def test_a_gpu_goes_back_to_nvidia(self):
        self.fails('driverctl set-override 0000:16:00.0 nvidia', gpus.ready(
            self.facts(SLICES, mig=None, driver='vfio-pci',
                       bound_from='nvidia', visible_to_nvml=False,
                       settings={'prepare': False})))

    def test_gpus_that_cannot_be_read(self):
        for gpu in ({'visible_to_nvml': False},
                    {'mig': None, 'problems': ('p',)}):
            self.says_nothing(gpus.ready, self.facts(SLICES, **gpu))
