# SPDX-License-Identifier: Apache-2.0
"""Checks of the NVSwitches, with plain values as input."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import gpus
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

ERROR, WARNING, UNKNOWN = case.ERROR, case.WARNING, case.UNKNOWN
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

    def facts(self, policy_=VGPUS, gpu=GPU, api=None, commands=(), **changes):
        return facts.Facts(
            model.Host((gpu,), driver_version='550.144.02'),
            policies.Settings((policy_,)),
            cyborg=api and facts.Cyborg('host', api=api),
            machine=facts.Machine(running=services.Running(
                frozenset(commands))),
            fabric=dataclasses.replace(GOOD, **changes))

    def test_what_is_wrong(self):
        away = dataclasses.replace(GPU, driver='vfio-pci')
        mode = model.FabricMode
        self.expect(gpus.fabric_manager, *(
            (severity, words, self.facts(*given, **changes))
            for severity, words, given, changes in (
                (ERROR, 'does not run', (WHOLE, away),
                 {'modules': {}, 'running': False}),
                (ERROR, 'no fabric manager is installed', (SLICES,),
                 {'installed': False, 'running': False}),
                (ERROR, '535.1 and the driver has version 550.144.02', (),
                 {'version': '535.1'}),
                (UNKNOWN, '--version', (), {'version': None}),
                (ERROR, 'FABRIC_MODE=2', (), {'mode': mode.BARE_METAL}),
                (ERROR, 'FABRIC_MODE=2', (), {'mode': mode.SHARED_NVSWITCH}),
                (WARNING, 'FABRIC_MODE=1', (WHOLE,), {'mode': mode.VGPU}),
                (ERROR, 'FABRIC_MODE=1', (LINKED,),
                 {'mode': mode.BARE_METAL}),
                (ERROR, 'FABRIC_MODE=1', (LINKED,), {'mode': mode.VGPU}),
                (UNKNOWN, 'No such file', (),
                 {'mode': None, 'mode_problem': 'No such file'}),
                (ERROR, 'waits for the list', (),
                 {'partitions': (), 'problem': 'waits for the list'}),
                (ERROR, 'NVLinks have failed', (),
                 {'failed': ('0000:01:00.0',)}),
                (ERROR, 'for this GPU alone', (), {'partitions': ()}),
                (ERROR, 'for this GPU alone', (), {'partitions': (
                    dataclasses.replace(SINGLE, supported=False),)}))))

    def test_all_is_well(self):
        mode = model.FabricMode
        self.silent(
            gpus.fabric_manager, self.facts(),
            self.facts(SLICES, mode=mode.BARE_METAL),
            self.facts(WHOLE, mode=mode.SHARED_NVSWITCH),
            self.facts(LINKED, mode=mode.SHARED_NVSWITCH),
            self.facts(modules={}, running=False),
            self.facts(SLICES, partitions=()))

    def test_whole_gpus_must_be_isolated(self):
        gpu = dataclasses.replace(GPU, nvlink_open='FABRIC_MODE is 0')
        mode = model.FabricMode.BARE_METAL
        self.expect(
            gpus.fabric_manager,
            (ERROR, 'not offered alone', self.facts(WHOLE, gpu, mode=mode)),
            (WARNING, 'nvlink_not_isolated', self.facts(
                dataclasses.replace(WHOLE, nvlink_not_isolated=True), gpu,
                mode=mode)))
        self.silent(gpus.fabric_manager,
                    self.facts(SLICES, gpu, mode=mode))

    def test_cyborg_api_has_its_port(self):
        def seen(address='127.0.0.1:6666', api=('127.0.0.1', 6666),
                 commands=('cyborg-api',)):
            return self.facts(api=api, commands=commands, address=address)

        self.expect(gpus.fabric_manager, *(
            (ERROR, 'FM_CMD_PORT_NUMBER', seen(api=(host, 6666)))
            for host in ('127.0.0.1', '0.0.0.0', '::')))
        self.silent(
            gpus.fabric_manager, seen(commands=()), *(
                seen(**other) for other in (
                    {'address': '127.0.0.1:6667'}, {'address': '/run/fm'},
                    {'address': None}, {'api': ('10.0.0.1', 6666)},
                    {'api': ('::1', 6666)})))
