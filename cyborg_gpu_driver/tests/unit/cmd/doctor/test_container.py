# SPDX-License-Identifier: Apache-2.0


"""Checks of what a container hides, and what they read of the machine."""

from __future__ import annotations

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import container
from cyborg_gpu_driver.cmd.doctor.rules import gpus
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

GPU = model.Gpu(model.PciAddress.parse('0000:16:00.0'), '10de', '20b2',
                '0302', driver='nvidia')
SLICES = policy.Policy('s', policy.Mode.MIG)
NODE = facts.Node(0, 0, 0o666)
NODES = {'/dev/nvidiactl': NODE, '/dev/nvidia0': NODE}

class LimitsTest(case.FindingCase):

    def facts(self, problem='', governing=SLICES, **machine):
        return facts.Facts(
            model.Host((GPU,), nvml_problem=problem),
            policies.Settings((governing,)),
            state_path='/var/lib/cyborg/gpu', machine=facts.Machine(
                **{'devices': NODES, 'modules': frozenset(('nvidia',)),
                   **machine}))

    def running(self, bounding):
        return services.Running(agent=services.User(0, bounding=bounding))

    def test_limits(self):
        self.expect(container.limits, *(
            (case.ERROR, words, self.facts(**machine))
            for words, machine in (
                ('PID namespace', {'shows_all': False}),
                ('/var/lib/cyborg/gpu is on overlay',
                 {'state_mount': facts.Mount('overlay')}),
                ('/var/lib/cyborg/gpu is on tmpfs',
                 {'state_mount': facts.Mount('tmpfs')}),
                ('/sys is read-only',
                 {'sysfs': facts.Mount('sysfs', read_only=True)}),
                # The bounding set of a container that is not privileged.
                ('CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYS_ADMIN',
                 {'running': self.running(0xa80425fb)}),
                ('0 of their nodes and no nvidiactl', {'devices': {}}),
                ('0 of their nodes /',
                 {'devices': {'/dev/nvidiactl': NODE}}))))
        self.silent(
            container.limits, self.facts(
                state_mount=facts.Mount('ext4'), sysfs=facts.Mount('sysfs'),
                running=self.running((1 << 41) - 1)),
            self.facts(devices={}, modules=frozenset()),
            self.facts(shows_all=False,
                       governing=policy.Policy('o', policy.Mode.OFF)))

    def test_library(self):
        problem = 'there is no NVML library (libnvidia-ml.so.1) on this'
        self.expect(
            gpus.nvml,
            (case.ERROR, 'mount libnvidia-ml.so.1', self.facts(problem)),
            (case.ERROR, 'modprobe nvidia',
             self.facts(problem, modules=frozenset())))
