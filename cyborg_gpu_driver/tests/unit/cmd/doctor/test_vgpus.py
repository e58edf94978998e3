# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""Checks of how vGPUs are created, with plain values as input."""

from __future__ import annotations

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.cmd.doctor.rules import gpus
from cyborg_gpu_driver.conf import policies
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


class CheckCase(case.FindingCase):

    framework = model.Framework.VENDOR_VFIO

    def facts(self, policy_=VGPUS, framework=None, totalvfs=32, vfs=(VF,),
              vfio_handles=False, driver='nvidia', kernel=None, commands=None,
              programs=()):
        gpu = model.Gpu(
            GPU, '10de', '26b9', '0302', driver=driver, visible_to_nvml=True,
            sriov_totalvfs=totalvfs, vfs=vfs,
            framework=framework or self.framework)
        return facts.Facts(
            model.Host((gpu,)),
            policies.Settings((policy_,), vfio_handles=vfio_handles),
            machine=facts.Machine(
                kernel=kernel, programs=dict(programs),
                running=None if commands is None
                else facts.Running(frozenset(commands))),
            sriov_manage='/x/sriov-manage', mdevctl='mdevctl')


class WayTest(CheckCase):

    def check_way(self, wanted, words, *args, **kwargs):
        self.check(wanted, words, gpus.way(self.facts(*args, **kwargs)))

    def no_way(self, *args, **kwargs):
        self.none(gpus.way(self.facts(*args, **kwargs)))

    def test_mdev(self):
        for framework in (model.Framework.MDEV_PF, model.Framework.MDEV_VF):
            self.no_way(framework=framework)

    def test_functions_on_demand(self):
        self.no_way(vfio_handles=True)

    def test_functions_left_to_nova(self):
        self.no_way(FIXED)

    def test_functions_of_nobody(self):
        self.check_way(finding.Severity.ERROR, 'nova_vfio_handles')

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

    def test_whole_gpus_are_no_matter(self):
        self.assertEqual([], list(gpus.way(self.facts(WHOLE))))


class KernelTest(CheckCase):

    framework = model.Framework.NONE

    def test_mdev_that_will_not_come(self):
        self.check(finding.Severity.WARNING, 'Linux 6.8',
                   gpus.kernel(self.facts(kernel=(6, 8))))

    def test_nothing_to_say(self):
        for found in (
                self.facts(kernel=(6, 7)), self.facts(kernel=None),
                self.facts(kernel=(6, 8), vfio_handles=True),
                self.facts(FIXED, kernel=(6, 8)),
                self.facts(kernel=(6, 8), totalvfs=0),
                self.facts(WHOLE, kernel=(6, 8)),
                self.facts(kernel=(6, 8),
                           framework=model.Framework.MDEV_VF)):
            self.assertEqual([], list(gpus.kernel(found)))


class SriovManageTest(CheckCase):

    absent = (('/x/sriov-manage', False),)

    def test_functions_cannot_be_made(self):
        self.check(finding.Severity.ERROR, '/x/sriov-manage cannot be run',
                   gpus.sriov_manage(self.facts(
                       vfs=(), programs=self.absent)))

    def test_functions_are_lost_at_a_reboot(self):
        self.check(finding.Severity.WARNING, 'lost at a reboot',
                   gpus.sriov_manage(self.facts(programs=self.absent)))

    def test_nothing_to_say(self):
        for found in (self.facts(programs=(('/x/sriov-manage', True),)),
                      self.facts(),
                      self.facts(programs=self.absent, totalvfs=0),
                      self.facts(WHOLE, programs=self.absent)):
            self.assertEqual([], list(gpus.sriov_manage(found)))


class MdevctlTest(CheckCase):

    absent = (('mdevctl', False),)

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
                self.facts(framework=mdev, programs=(('mdevctl', True),))):
            self.assertEqual([], list(gpus.mdevctl(found)))


class StartCommandTest(CheckCase):

    def command(self, vfio_handles, *running, unknown=False):
        return gpus.start_command(self.facts(
            vfio_handles=vfio_handles,
            commands=None if unknown else running))

    def test_both_sides_agree(self):
        self.none(self.command(True, 'cyborg-gpu-nova-compute'))
        self.assertEqual([], list(self.command(False, 'nova-compute')))
        self.assertEqual([], list(self.command(False, unknown=True)))

    def test_stock_command_with_our_handles(self):
        for running in (('nova-compute',),
                        ('nova-compute', 'cyborg-gpu-nova-compute')):
            self.check(finding.Severity.ERROR, 'will fail to start',
                       self.command(True, *running))

    def test_nothing_is_seen(self):
        self.check(finding.Severity.WARNING, 'no nova-compute',
                   self.command(True))
        self.check(finding.Severity.WARNING, 'no nova-compute',
                   self.command(True, unknown=True))

    def test_our_command_without_our_handles(self):
        """The command also attaches whole GPUs when the host boots."""
        self.assertEqual([], list(
            self.command(False, 'cyborg-gpu-nova-compute')))
