# SPDX-License-Identifier: Apache-2.0


"""Checks of how vGPUs are created, with plain values as input."""

from __future__ import annotations

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import gpus
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

ERROR, WARNING = case.ERROR, case.WARNING
GPU = model.PciAddress.parse('0000:16:00.0')
VF = model.VirtualFunction(model.PciAddress.parse('0000:16:00.4'), 0,
                           'nvidia', None)
VGPUS = policy.Policy('p', policy.Mode.VGPU, vgpu_types=('L40S-12Q',))
FIXED = policy.Policy('p', policy.Mode.VGPU,
                      fixed_vgpus=(('L40S-12Q', 2),))
WHOLE = policy.Policy('p', policy.Mode.PASSTHROUGH)
GROUPS = policy.Policy('p', policy.Mode.NVLINK)


class CheckCase(case.FindingCase):

    framework = model.Framework.VENDOR_VFIO

    def facts(self, policy_=VGPUS, framework=None, totalvfs=32, vfs=(VF,),
              driver='nvidia', kernel=None, commands=None,
              programs=()):
        gpu = model.Gpu(
            GPU, '10de', '26b9', '0302', driver=driver, visible_to_nvml=True,
            sriov_totalvfs=totalvfs, vfs=vfs,
            framework=framework or self.framework)
        running = None if commands is None else services.Running(
            frozenset(commands))
        return facts.Facts(
            model.Host((gpu,), nova_unpatched=bool(
                running and running.nova_unpatched)),
            policies.Settings((policy_,)), machine=facts.Machine(
                kernel=kernel, programs=dict(programs), running=running))


class FrameworkTest(CheckCase):

    def test_driver_without_vgpus(self):
        none = model.Framework.NONE
        self.expect(
            gpus.way,
            (ERROR, 'vGPU host driver', self.facts(framework=none)),
            (ERROR, 'vGPU host driver',
             self.facts(framework=none, vfs=(), totalvfs=0)))
        self.silent(
            gpus.way, self.facts(), self.facts(FIXED),
            # Other checks report these.
            self.facts(framework=none, vfs=()),
            self.facts(framework=none, driver='nouveau'),
            self.facts(framework=none, driver=None))

    def test_sriov_manage(self):
        absent = ((platform.SRIOV_MANAGE, False),)
        self.expect(
            gpus.sriov_manage,
            (ERROR, 'sriov-manage cannot be run',
             self.facts(vfs=(), programs=absent)),
            (WARNING, 'lost at a reboot', self.facts(programs=absent)))
        self.silent(
            gpus.sriov_manage, self.facts(),
            self.facts(programs=((platform.SRIOV_MANAGE, True),)),
            self.facts(programs=absent, totalvfs=0),
            self.facts(WHOLE, programs=absent))

    def test_mdevctl(self):
        absent = ((platform.MDEVCTL, False),)
        mdev = model.Framework.MDEV_VF
        self.expect(gpus.mdevctl, *(
            (WARNING, 'the package mdevctl',
             self.facts(framework=framework, programs=absent))
            for framework in (model.Framework.MDEV_PF, mdev)))
        self.silent(
            gpus.mdevctl, self.facts(programs=absent),
            self.facts(WHOLE, mdev, programs=absent),
            self.facts(framework=mdev, programs=((platform.MDEVCTL, True),)))


class StartCommandTest(CheckCase):

    def seen(self, *running, **more):
        return self.facts(commands=running, **more)

    def test_without_the_patches(self):
        found = self.check(ERROR, 'are not offered', gpus.start_command(
            self.seen('nova-compute')))
        self.assertIn('as cyborg-gpu-nova-compute', found.action)
        none = {'framework': model.Framework.NONE}
        self.expect(
            gpus.start_command,
            (ERROR, 'are not offered',
             self.seen('nova-compute', policy_=GROUPS, **none)),
            # Before there are functions.
            (ERROR, 'are not offered',
             self.seen('nova-compute', kernel=(6, 8), vfs=(), **none)),
            (WARNING, 'no nova-compute', self.seen()),
            (WARNING, 'no nova-compute', self.facts()))

    def test_nothing_to_say(self):
        none = {'framework': model.Framework.NONE, 'vfs': ()}
        self.silent(
            gpus.start_command, self.seen('cyborg-gpu-nova-compute'),
            # The other one may be that of Ironic.
            self.seen('nova-compute', 'cyborg-gpu-nova-compute'),
            self.seen('nova-compute', kernel=(6, 7), **none),
            self.seen('nova-compute', kernel=None, **none),
            self.seen('nova-compute', kernel=(6, 8), totalvfs=0, **none),
            # What a plain nova-compute attaches.
            self.seen('nova-compute', policy_=FIXED),
            self.seen('nova-compute', policy_=WHOLE),
            self.seen('nova-compute', framework=model.Framework.MDEV_VF))
