# SPDX-License-Identifier: Apache-2.0


"""Checks of cyborg-agent's user, with plain values as input."""

from __future__ import annotations

from oslotest import base

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import cyborg
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

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

    def fails(self, words, findings):
        self.check(finding.Severity.ERROR, words, findings)

    def warns(self, words, findings):
        self.check(finding.Severity.WARNING, words, findings)


class PrivilegesTest(AgentCase):

    def found(self, **more):
        return list(cyborg.privileges(self.facts(**more)))

    def test_helper_by_sudo(self):
        for helper in (None, 'sudo -E privsep-helper',
                       '/usr/bin/sudo nova-rootwrap x privsep-helper',
                       '/usr/bin/doas privsep-helper'):
            self.none(self.found(helper=helper))

    def test_whole_gpus_need_no_helper(self):
        self.assertEqual([], self.found(policy_=WHOLE, helper='x'))

    def test_helper_that_stays_what_it_is(self):
        self.fails('does not run as root',
                   self.found(helper='/opt/bin/privsep-helper'))

    def test_program_that_is_not_there(self):
        self.fails('helper program privsep-helper cannot be run', self.found(
            programs=(('sudo', True), ('privsep-helper', False))))
        self.fails('helper program /x/sudo cannot', self.found(
            helper='/x/sudo p', programs=(('/x/sudo', False),)))

    def test_malformed(self):
        for helper in ('sudo "x', ' '):
            self.fails('is malformed', self.found(helper=helper))


class AccessTest(AgentCase):

    def found(self, **more):
        return list(cyborg.access(self.facts(**more)))

    def test_devices(self):
        found = self.found(devices=(
            ('/dev/nvidia1', CLOSED), ('/dev/nvidia0', CLOSED),
            (CONTROL, OPEN), (MIG, OPEN)))
        self.fails('open /dev/nvidia0, /dev/nvidia1, so NVML', found)

    def test_device_that_may_only_be_read(self):
        self.fails(CONTROL, self.found(devices=(
            (CONTROL, facts.Node(0, 0, 0o644)), (MIG, OPEN))))

    def test_mig(self):
        closed = ((CONTROL, OPEN), (MIG, CLOSED))
        self.warns(f'setfacl -m u:64:r {MIG}', self.found(devices=closed))
        self.assertEqual([], self.found(devices=closed, policy_=VGPUS))
        file = '/proc/driver/nvidia/capabilities/mig/config'
        self.warns(f'cannot read {file}', self.found(
            devices=((CONTROL, OPEN), (file, CLOSED)), mig=file))

    def test_state_directory(self):
        self.warns('install -d -o 64', self.found(state=None))
        for mode in (0o600, 0o550, 0o050):
            self.fails('cannot write', self.found(
                state=facts.Node(64, 64, mode)))
        self.fails('/var/lib/cyborg/gpu', self.found(
            state=facts.Node(0, 0, 0o755)))

    def test_nothing_to_say(self):
        self.assertEqual([], self.found())
        self.assertEqual([], self.found(devices=(), mig=None))
        self.assertEqual([], self.found(
            user=ROOT, state=None, devices=((CONTROL, CLOSED),)))


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
