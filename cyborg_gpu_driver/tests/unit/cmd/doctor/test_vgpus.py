# SPDX-License-Identifier: Apache-2.0


"""Checks of how vGPUs are created, with plain values as input."""

from __future__ import annotations

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.cmd.doctor.rules import gpus
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

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


class WayTest(CheckCase):

    def check_way(self, wanted, words, *args, **kwargs):
        self.check(wanted, words, gpus.way(self.facts(*args, **kwargs)))

    def no_way(self, *args, **kwargs):
        self.none(gpus.way(self.facts(*args, **kwargs)))

    def test_functions_without_mdev(self):
        self.no_way()
        self.no_way(FIXED)

    def test_what_other_checks_tell(self):
        for found in (
                self.facts(framework=model.Framework.NONE, vfs=()),
                self.facts(framework=model.Framework.NONE, driver='nouveau'),
                self.facts(framework=model.Framework.NONE, driver=None)):
            self.assertEqual([], list(gpus.way(found)))

    def test_driver_without_vgpus(self):
        self.check_way(finding.Severity.ERROR, 'vGPU host driver',
                       framework=model.Framework.NONE)
        self.check_way(finding.Severity.ERROR, 'vGPU host driver',
                       framework=model.Framework.NONE, vfs=(), totalvfs=0)

class SriovManageTest(CheckCase):

    absent = ((platform.SRIOV_MANAGE, False),)

    def test_functions_cannot_be_made(self):
        self.check(finding.Severity.ERROR, 'sriov-manage cannot be run',
                   gpus.sriov_manage(self.facts(
                       vfs=(), programs=self.absent)))

    def test_functions_are_lost_at_a_reboot(self):
        self.check(finding.Severity.WARNING, 'lost at a reboot',
                   gpus.sriov_manage(self.facts(programs=self.absent)))

    def test_nothing_to_say(self):
        for found in (self.facts(programs=((platform.SRIOV_MANAGE, True),)),
                      self.facts(),
                      self.facts(programs=self.absent, totalvfs=0),
                      self.facts(WHOLE, programs=self.absent)):
            self.assertEqual([], list(gpus.sriov_manage(found)))


class MdevctlTest(CheckCase):

    absent = ((platform.MDEVCTL, False),)

    def test_absent(self):
        for framework in (model.Framework.MDEV_PF, model.Framework.MDEV_VF):
            self.check(finding.Severity.WARNING, 'the package mdevctl',
                       gpus.mdevctl(self.facts(framework=framework,
                                               programs=self.absent)))

    def test_nothing_to_say(self):
        mdev = model.Framework.MDEV_VF
        for found in (
                self.facts(programs=self.absent),
                self.facts(WHOLE, mdev, programs=self.absent),
                self.facts(framework=mdev,
                           programs=((platform.MDEVCTL, True),))):
            self.assertEqual([], list(gpus.mdevctl(found)))


class StartCommandTest(CheckCase):

    def command(self, *running, **more):
        return gpus.start_command(self.facts(commands=running, **more))

    def test_patched(self):
        self.none(self.command('cyborg-gpu-nova-compute'))
        # The other one may be that of Ironic.
        self.none(self.command('nova-compute', 'cyborg-gpu-nova-compute'))

    def test_without_the_patches(self):
        found = self.check(finding.Severity.ERROR, 'are not offered',
                           self.command('nova-compute'))
        self.assertIn('as cyborg-gpu-nova-compute', found.action)
        self.check(finding.Severity.ERROR, 'are not offered', self.command(
            'nova-compute', policy_=GROUPS, framework=model.Framework.NONE))

    def test_nothing_is_seen(self):
        self.check(finding.Severity.WARNING, 'no nova-compute',
                   self.command())
        self.check(finding.Severity.WARNING, 'no nova-compute',
                   gpus.start_command(self.facts()))

    def test_before_there_are_functions(self):
        none = {'framework': model.Framework.NONE, 'vfs': ()}
        self.check(finding.Severity.ERROR, 'are not offered', self.command(
            'nova-compute', kernel=(6, 8), **none))
        self.none(self.command('nova-compute', kernel=(6, 7), **none))
        self.none(self.command('nova-compute', kernel=None, **none))
        self.none(self.command('nova-compute', kernel=(6, 8), totalvfs=0,
                               **none))

    def test_what_a_plain_nova_compute_attaches(self):
        self.none(self.command('nova-compute', policy_=FIXED))
        self.none(self.command('nova-compute', policy_=WHOLE))
        self.none(self.command('nova-compute',
                               framework=model.Framework.MDEV_VF))
