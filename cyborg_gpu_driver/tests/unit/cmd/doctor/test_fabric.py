# SPDX-License-Identifier: Apache-2.0
"""Checks of the NVSwitches, with plain values as input."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.cmd.doctor.rules import gpus
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

ADDRESS = model.PciAddress.parse('0000:18:00.0')
GPU = model.Gpu(ADDRESS, '10de', '2330', '0302', driver='nvidia',
                visible_to_nvml=True)
SINGLE = model.FabricPartition(7, (model.FabricMember(1),))
GOOD = model.Fabric({ADDRESS: 1}, running=True, mode=model.FabricMode.VGPU,
                    version='550.144.02', installed=True,
                    partitions=(SINGLE,))
VGPUS = policy.Policy('v', policy.Mode.VGPU, vgpu_types=('H100-80C',))
WHOLE = policy.Policy('w', policy.Mode.PASSTHROUGH)
SLICES = policy.Policy('s', policy.Mode.MIG)
LINKED = policy.Policy('l', policy.Mode.NVLINK)


class FabricTest(case.FindingCase):

    def find(self, policy_=VGPUS, gpu=GPU, **changes):
        return list(gpus.fabric_manager(facts.Facts(
            model.Host((gpu,), driver_version='550.144.02'),
            policies.Settings((policy_,)),
            fabric=dataclasses.replace(GOOD, **changes))))

    def fails(self, words, findings):
        self.check(finding.Severity.ERROR, words, findings)

    def test_all_is_well(self):
        self.assertEqual([], self.find())
        self.assertEqual([], self.find(
            SLICES, mode=model.FabricMode.BARE_METAL))
        self.assertEqual([], self.find(
            WHOLE, mode=model.FabricMode.SHARED_NVSWITCH))

    def test_a_gpu_that_is_not_on_the_board(self):
        self.assertEqual([], self.find(modules={}, running=False))
        self.fails('does not run', self.find(
            WHOLE, dataclasses.replace(GPU, driver='vfio-pci'), modules={},
            running=False))

    def test_not_installed(self):
        self.fails('no fabric manager is installed',
                   self.find(SLICES, installed=False, running=False))

    def test_another_version_than_the_driver(self):
        self.fails('535.1 and the driver has version 550.144.02',
                   self.find(version='535.1'))
        self.check(finding.Severity.UNKNOWN, '--version',
                   self.find(version=None))

    def test_vgpus_need_their_mode(self):
        for mode in (model.FabricMode.BARE_METAL,
                     model.FabricMode.SHARED_NVSWITCH):
            self.fails('FABRIC_MODE=2', self.find(mode=mode))

    def test_whole_gpus_need_theirs(self):
        self.check(finding.Severity.WARNING, 'FABRIC_MODE=1', self.find(
            WHOLE, mode=model.FabricMode.VGPU))

    def test_whole_gpus_must_be_isolated(self):
        gpu = dataclasses.replace(GPU, nvlink_open='FABRIC_MODE is 0')
        mode = model.FabricMode.BARE_METAL
        self.fails('not offered alone', self.find(WHOLE, gpu, mode=mode))
        self.check(finding.Severity.WARNING, 'nvlink_not_isolated', self.find(
            dataclasses.replace(WHOLE, nvlink_not_isolated=True), gpu,
            mode=mode))
        self.assertEqual([], self.find(SLICES, gpu, mode=mode))

    def test_groups_need_it_as_well(self):
        for mode in (model.FabricMode.BARE_METAL, model.FabricMode.VGPU):
            self.fails('FABRIC_MODE=1', self.find(LINKED, mode=mode))
        self.assertEqual([], self.find(
            LINKED, mode=model.FabricMode.SHARED_NVSWITCH))

    def test_cyborg_api_has_its_port(self):
        def find(address='127.0.0.1:6666', api=('127.0.0.1', 6666),
                 commands=('cyborg-api',)):
            return list(gpus.fabric_manager(facts.Facts(
                model.Host((GPU,), driver_version='550.144.02'),
                policies.Settings((VGPUS,)),
                cyborg=facts.Cyborg('host', api=api),
                machine=facts.Machine(running=services.Running(
                    frozenset(commands))),
                fabric=dataclasses.replace(GOOD, address=address))))

        for host in ('127.0.0.1', '0.0.0.0', '::'):
            self.check(finding.Severity.ERROR, 'FM_CMD_PORT_NUMBER',
                       find(api=(host, 6666)))
        self.none(find(commands=()))
        for other in ({'address': '127.0.0.1:6667'}, {'address': '/run/fm'},
                      {'address': None}, {'api': ('10.0.0.1', 6666)},
                      {'api': ('::1', 6666)}):
            self.assertEqual([], find(**other))

    def test_the_mode_is_not_known(self):
        self.check(finding.Severity.UNKNOWN, 'No such file',
                   self.find(mode=None, mode_problem='No such file'))

    def test_no_answer(self):
        self.fails('waits for the list', self.find(
            partitions=(), problem='waits for the list'))

    def test_failed_links(self):
        self.fails('NVLinks have failed', self.find(failed=('0000:01:00.0',)))

    def test_no_partition_for_a_gpu(self):
        self.fails('for this GPU alone', self.find(partitions=()))
        self.fails('for this GPU alone', self.find(partitions=(
            dataclasses.replace(SINGLE, supported=False),)))
        self.assertEqual([], self.find(SLICES, partitions=()))
