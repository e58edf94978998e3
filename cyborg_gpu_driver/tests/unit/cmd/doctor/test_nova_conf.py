# SPDX-License-Identifier: Apache-2.0


"""Checks of nova.conf, on simulated hosts."""

from __future__ import annotations

import dataclasses
import json

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import nova as rules_nova
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.nova import conf_file
from cyborg_gpu_driver.nova import handles
from cyborg_gpu_driver.nova import pci_config
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

ERROR, WARNING, UNKNOWN = case.ERROR, case.WARNING, case.UNKNOWN
FIRST = model.PciAddress.parse('0000:16:00.0')
FIXED = policy.Policy('p', policy.Mode.VGPU, match_address=(FIRST,),
                      fixed_vgpus=(('L40S-12Q', 2),))
OTHERS = policy.Policy('o', policy.Mode.OFF)
ON_DEMAND = (policy.Policy('d', policy.Mode.VGPU, match_address=(FIRST,),
                           vgpu_types=('L40S-12Q',)), OTHERS)
SENDS = {'sends_service_token': True, 'has_service_user': True}
WHOLE = policy.Policy('w', policy.Mode.PASSTHROUGH)


class NovaCase(case.FindingCase):

    def setUp(self):
        super().setUp()
        guard = simulator.Machine.load('l40sx4').install()
        self.addCleanup(guard.uninstall)
        self.host = reader.HostReader(platform.Platform(
            pci.Sysfs('/sys', os_module=guard.os), nvml.NvmlSession(),
            simulated=True)).snapshot()

    def facts(self, *specs, governing=(FIXED, OTHERS), in_placement=True,
              mdev_types=(), nova=SENDS, commands=(), post_copy=False):
        return facts.Facts(
            self.host, policies.Settings(governing),
            nova=facts.Nova(conf_file.NovaConf(
                ('nova.conf',), pci_config.parse_device_spec(
                    [json.dumps(spec) for spec in specs]), in_placement,
                mdev_types, post_copy), **nova),
            machine=facts.Machine(
                running=services.Running(frozenset(commands))))

    def lines(self, in_placement=True):
        """Return the entries that "cyborg-gpu nova config" writes."""
        return list(pci_config.build(
            handles.assigned(self.host.gpu(FIRST), FIXED, {}),
            in_placement).device_spec)


class LeftTest(NovaCase):
    """GPUs whose virtual functions Nova assigns."""

    def test_the_lines_that_we_write(self):
        self.silent(rules_nova.pci_devices, *(
            self.facts(*self.lines(in_placement), in_placement=in_placement)
            for in_placement in (True, False)))

    def test_a_line_that_is_missing_or_managed(self):
        first, second = self.lines()
        found = self.check(ERROR, 'no [pci] device_spec',
                           rules_nova.pci_devices(self.facts(first)))
        self.assertEqual(second['address'], found.gpu)
        del first['managed']
        found = self.check(ERROR, '"managed": "no"', rules_nova.pci_devices(
            self.facts(first, second)))
        self.assertEqual(first['address'], found.gpu)

    def test_migration(self):
        lines = self.lines()
        self.silent(rules_nova.pci_devices,
                    self.facts(*lines, post_copy=True))
        lines[1]['live_migratable'] = 'yes'
        given = self.facts(*lines)

        def saying(supported):
            return dataclasses.replace(given, migrations={FIRST: supported})

        self.silent(rules_nova.pci_devices, given, saying(True), saying(None))
        found = self.check(ERROR, 'NVML says that the GPU does not',
                           rules_nova.pci_devices(saying(False)))
        self.assertEqual(lines[1]['address'], found.gpu)
        self.expect(rules_nova.pci_devices, (
            ERROR, 'live_migration_permit_post_copy is true',
            self.facts(*lines, post_copy=True)))

    def test_resource_class_counts_in_placement_only(self):
        found = list(rules_nova.pci_devices(
            self.facts(*self.lines(in_placement=False))))
        self.assertEqual(2, len(found))
        self.assertIn('class NONE instead of', found[0].message)

    def test_functions_without_a_vgpu(self):
        found = list(rules_nova.pci_devices(self.facts({
            'vendor_id': '10de', 'managed': 'no',
            'resource_class': 'CUSTOM_NVIDIA_L40S_12Q'})))
        self.assertEqual({ERROR}, {item.severity for item in found})
        vfs = {str(item.address) for item in self.host.gpu(FIRST).vfs}
        self.assertEqual(
            {str(FIRST), *vfs} - {line['address'] for line in self.lines()},
            {item.gpu for item in found})

    def test_types(self):
        two = dataclasses.replace(
            FIXED, mixed_sizes=True,
            fixed_vgpus=(('L40S-12Q', 1), ('L40S-12A', 1)))
        second = dataclasses.replace(
            FIXED, match_address=(model.PciAddress.parse('0000:38:00.0'),),
            fixed_vgpus=(('L40S-24Q', 1),))
        much = dataclasses.replace(FIXED, fixed_vgpus=(('L40S-12Q', 99),))
        of_two_gpus = FIXED, second, OTHERS
        self.expect(
            rules_nova.pci_devices,
            (ERROR, 'one resource class per GPU',
             self.facts(governing=(two, OTHERS))),
            (ERROR, 'enable [pci]',
             self.facts(governing=of_two_gpus, in_placement=False)),
            # What the GPU cannot carry.
            (ERROR, 'fixed_vgpus', self.facts(governing=(much, OTHERS))))
        self.assertEqual(3, len(list(rules_nova.pci_devices(
            self.facts(governing=of_two_gpus)))))


class OursTest(NovaCase):
    """GPUs that Cyborg hands out."""

    def test_nova_has_one_too(self):
        found = self.check(
            ERROR, 'both Cyborg and Nova', rules_nova.pci_devices(self.facts(
                {'address': str(FIRST)}, governing=(
                    dataclasses.replace(WHOLE, match_address=(FIRST,)),
                    OTHERS))))
        self.assertEqual(str(FIRST), found.gpu)
        self.expect(rules_nova.pci_devices, (
            ERROR, '0000:16:00.5',
            self.facts({'address': '0000:16:00.5'}, governing=ON_DEMAND)))

    def test_nova_has_other_devices(self):
        self.silent(
            rules_nova.pci_devices,
            *(self.facts(spec, governing=ON_DEMAND) for spec in (
                {'vendor_id': '8086'}, {'address': '0000:38:00.0'},
                {'devname': 'eth0'})),
            self.facts({'vendor_id': '10de'}, governing=(OTHERS,)))

    def test_nova_makes_mdevs_too(self):
        self.expect(rules_nova.mdev_types, (
            ERROR, 'nvidia-1', self.facts(mdev_types=('nvidia-1',))))
        self.silent(
            rules_nova.mdev_types, self.facts(),
            self.facts(mdev_types=('nvidia-1',), governing=(WHOLE,)))


class NovaTest(NovaCase):
    """The release of Nova, and its other options."""

    def on(self, *governing, options=SENDS, **machine):
        return dataclasses.replace(
            self.facts(governing=(*governing, OTHERS), nova=options),
            machine=facts.Machine(**machine))

    def test_release(self):
        slices = policy.Policy('s', policy.Mode.MIG, match_address=(FIRST,))
        old = {'nova': '33.0.0', 'mdev_problem': 'why'}
        self.expect(
            rules_nova.release,
            (ERROR, 'why / Upgrade Nova to 34.0.0', self.on(slices, **old)),
            (UNKNOWN, 'Nova is not installed', self.on(slices)))
        self.silent(rules_nova.release, self.on(slices, nova='34.0.0'),
                    self.on(WHOLE, **old), self.on(FIXED, **old))

    def test_service_token(self):
        self.expect(
            rules_nova.service_token,
            (ERROR, 'send_service_user_token = true',
             self.facts(governing=(WHOLE,),
                        nova={'has_service_user': True})),
            (ERROR, '[service_user]',
             self.facts(governing=(WHOLE,),
                        nova={'sends_service_token': True})))
        # Cyborg assigns no GPU of this host.
        self.silent(rules_nova.service_token, self.facts(nova={}))

    def test_guests_at_boot(self):
        resumes = {'nova': {'resumes_guests': True}}
        self.expect(
            rules_nova.guests,
            (ERROR, 'resume_guests_state_on_host_boot',
             self.facts(governing=(WHOLE,), **resumes)),
            (ERROR, 'without their GPUs',
             self.facts(governing=ON_DEMAND, **resumes)),
            *((ERROR, 'cyborg-gpu-nova-compute', self.facts(
                governing=(WHOLE,), commands=running, **resumes))
              for running in (('nova-compute',),
                              ('nova-compute', 'cyborg-gpu-nova-compute'))))
        self.silent(
            rules_nova.guests, self.facts(governing=(WHOLE,)),
            self.facts(**resumes), self.facts(governing=(OTHERS,), **resumes),
            self.facts(governing=(WHOLE,), **resumes,
                       commands=('cyborg-gpu-nova-compute',)))

    def test_quotas(self):
        unified = {'options': {'unified_limits': True}}
        self.expect(
            rules_nova.quotas,
            (WARNING, 'does not count', self.on(
                nova='33.0.2', quota_problem='Nova 33.0.2 does not count',
                **unified)),
            (UNKNOWN, 'not installed in', self.on(**unified)))
        self.silent(rules_nova.quotas, self.on(nova='34.0.0', **unified))
