# SPDX-License-Identifier: Apache-2.0

"""Checks of cyborg-agent's user and container, with plain values as input."""

from __future__ import annotations

from oslotest import base

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import container
from cyborg_gpu_driver.cmd.doctor.rules import cyborg
from cyborg_gpu_driver.cmd.doctor.rules import gpus
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

ERROR, WARNING = case.ERROR, case.WARNING
GPU = model.Gpu(model.PciAddress.parse('0000:16:00.0'), '10de', '20b2',
                '0302', driver='nvidia')
SLICES = policy.Policy('s', policy.Mode.MIG)
VGPUS = policy.Policy('v', policy.Mode.VGPU, vgpu_types=('A100-40C',))
WHOLE = policy.Policy('w', policy.Mode.PASSTHROUGH)
ROOT = services.User(0)
CYBORG = services.User(64, frozenset((64,)))
OPEN = facts.Node(0, 0, 0o666)
CLOSED = facts.Node(0, 0, 0o600)
OWN = facts.Node(64, 64, 0o750)
CONTROL = '/dev/nvidiactl'
MIG = '/dev/nvidia-caps/nvidia-cap1'


class AgentCase(case.FindingCase):

    def facts(self, user=CYBORG, policy_=SLICES, helper=None, programs=(),
              devices=((CONTROL, OPEN), (MIG, OPEN)), state=OWN, mig=MIG,
              listed=True):
        return facts.Facts(
            model.Host((GPU,)), policies.Settings((policy_,)),
            facts.Cyborg('h', helper_command=helper),
            machine=facts.Machine(
                running=services.Running(agent=user) if listed else None,
                devices=dict(devices), mig_device=mig, state=state,
                programs=dict(programs)),
            state_path='/var/lib/cyborg/gpu')

    def test_helper(self):
        self.expect(
            cyborg.privileges,
            (ERROR, 'does not run as root',
             self.facts(helper='/opt/bin/privsep-helper')),
            (ERROR, 'helper program privsep-helper cannot be run', self.facts(
                programs=(('sudo', True), ('privsep-helper', False)))),
            (ERROR, 'helper program /x/sudo cannot', self.facts(
                helper='/x/sudo p', programs=(('/x/sudo', False),))),
            *((ERROR, 'is malformed', self.facts(helper=helper))
              for helper in ('sudo "x', ' ')))
        self.silent(
            cyborg.privileges, self.facts(policy_=WHOLE, helper='x'),
            *(self.facts(helper=helper) for helper in (
                None, 'sudo -E privsep-helper',
                '/usr/bin/sudo nova-rootwrap x privsep-helper',
                '/usr/bin/doas privsep-helper')))

    def test_devices(self):
        closed = ((CONTROL, OPEN), (MIG, CLOSED))
        file = '/proc/driver/nvidia/capabilities/mig/config'
        self.expect(
            cyborg.access,
            (ERROR, 'open /dev/nvidia0, /dev/nvidia1, so NVML', self.facts(
                devices=(('/dev/nvidia1', CLOSED), ('/dev/nvidia0', CLOSED),
                         (CONTROL, OPEN), (MIG, OPEN)))),
            # A device that may only be read.
            (ERROR, CONTROL, self.facts(devices=(
                (CONTROL, facts.Node(0, 0, 0o644)), (MIG, OPEN)))),
            (WARNING, f'setfacl -m u:64:r {MIG}', self.facts(devices=closed)),
            (WARNING, f'cannot read {file}', self.facts(
                devices=((CONTROL, OPEN), (file, CLOSED)), mig=file)))
        self.silent(
            cyborg.access, self.facts(), self.facts(devices=(), mig=None),
            self.facts(devices=closed, policy_=VGPUS),
            self.facts(user=ROOT, state=None, devices=((CONTROL, CLOSED),)))

    def test_state_directory(self):
        self.expect(
            cyborg.access,
            (WARNING, 'install -d -o 64', self.facts(state=None)),
            (ERROR, '/var/lib/cyborg/gpu',
             self.facts(state=facts.Node(0, 0, 0o755))),
            *((ERROR, 'cannot write',
               self.facts(state=facts.Node(64, 64, mode)))
              for mode in (0o600, 0o550, 0o050)))


class NodeTest(base.BaseTestCase):

    def test_first_class_that_matches_decides(self):
        read, write = facts.Right.READ, facts.Right.WRITE
        for uid, gid, mode, right, wanted in (
                (64, 0, 0o400, read, True), (64, 0, 0o400, write, False),
                (0, 64, 0o060, read | write, True),
                (0, 64, 0o040, read | write, False),
                (0, 0, 0o004, read, True), (0, 0, 0o440, read, False),
                (64, 64, 0o077, read, False), (0, 64, 0o707, read, False)):
            self.assertIs(wanted, facts.Node(uid, gid, mode).allows(
                CYBORG, right), (uid, gid, oct(mode), right))

    def test_root_may_all(self):
        self.assertTrue(facts.Node(1, 1, 0).allows(
            ROOT, facts.Right.READ))


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
