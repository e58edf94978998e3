# SPDX-License-Identifier: Apache-2.0


"""Checks of nova.conf, on simulated hosts."""

from __future__ import annotations

import dataclasses
import json

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.cmd.doctor.rules import nova as rules_nova
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.snapshot import domain
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.nova import conf_file
from cyborg_gpu_driver.nova import handles
from cyborg_gpu_driver.nova import pci_config
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

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

    def findings(self, *specs, **more):
        return list(rules_nova.pci_devices(self.facts(*specs, **more)))

    def test_the_lines_that_we_write(self):
        for in_placement in (True, False):
            self.none(self.findings(*self.lines(in_placement),
                                    in_placement=in_placement))

    def test_a_line_is_missing(self):
        first, second = self.lines()
        found = self.check(finding.Severity.ERROR, 'no [pci] device_spec',
                           self.findings(first))
        self.assertEqual(second['address'], found.gpu)

    def test_a_managed_function(self):
        first, second = self.lines()
        del first['managed']
        found = self.check(finding.Severity.ERROR, '"managed": "no"',
                           self.findings(first, second))
        self.assertEqual(first['address'], found.gpu)

    def test_a_gpu_that_cannot_migrate(self):
        lines = self.lines()
        lines[1]['live_migratable'] = 'yes'
        facts = self.facts(*lines)
        for supported in (True, None):
            self.none(rules_nova.pci_devices(self.saying(facts, supported)))
        found = self.check(
            finding.Severity.ERROR, 'NVML says that the GPU does not',
            rules_nova.pci_devices(self.saying(facts, False)))
        self.assertEqual(lines[1]['address'], found.gpu)

    def test_post_copy(self):
        lines = self.lines()
        self.none(rules_nova.pci_devices(self.facts(*lines, post_copy=True)))
        for line in lines:
            line['live_migratable'] = 'yes'
        self.none(rules_nova.pci_devices(self.facts(*lines)))
        self.check(finding.Severity.ERROR,
                   'live_migration_permit_post_copy is true',
                   rules_nova.pci_devices(self.facts(*lines, post_copy=True)))

    def saying(self, facts, supported):
        return dataclasses.replace(facts, migrations={
            FIRST: domain.Migration(supported)})

    def test_resource_class_counts_in_placement_only(self):
        self.none(self.findings(
            *self.lines(in_placement=False), in_placement=False))
        found = self.findings(*self.lines(in_placement=False))
        self.assertEqual(2, len(found))
        self.assertIn('class NONE instead of', found[0].message)

    def test_functions_without_a_vgpu(self):
        everything = {'vendor_id': '10de', 'managed': 'no',
                      'resource_class': 'CUSTOM_NVIDIA_L40S_12Q'}
        found = self.findings(everything)
        self.assertEqual({finding.Severity.ERROR},
                         {item.severity for item in found})
        vfs = {str(item.address) for item in self.host.gpu(FIRST).vfs}
        self.assertEqual(
            {str(FIRST), *vfs} - {line['address'] for line in self.lines()},
            {item.gpu for item in found})

    def test_types_that_nova_cannot_tell_apart(self):
        two = dataclasses.replace(
            FIXED, mixed_sizes=True,
            fixed_vgpus=(('L40S-12Q', 1), ('L40S-12A', 1)))
        self.check(finding.Severity.ERROR, 'one resource class per GPU',
                   self.findings(governing=(two, OTHERS)))

    def test_types_of_two_gpus_need_placement(self):
        second = dataclasses.replace(
            FIXED, match_address=(model.PciAddress.parse('0000:38:00.0'),),
            fixed_vgpus=(('L40S-24Q', 1),))
        governing = (FIXED, second, OTHERS)
        self.check(finding.Severity.ERROR, 'enable [pci]', self.findings(
            governing=governing, in_placement=False))
        self.assertEqual(3, len(self.findings(governing=governing)))

    def test_what_the_gpu_cannot_carry(self):
        much = dataclasses.replace(FIXED, fixed_vgpus=(('L40S-12Q', 99),))
        self.check(finding.Severity.ERROR, 'fixed_vgpus',
                   self.findings(governing=(much, OTHERS)))


class OursTest(NovaCase):
    """GPUs that Cyborg hands out."""

    def findings(self, *specs, **more):
        return list(rules_nova.pci_devices(self.facts(*specs, **more)))

    def test_nova_has_a_gpu_of_ours_too(self):
        found = self.check(
            finding.Severity.ERROR, 'both Cyborg and Nova',
            self.findings({'address': str(FIRST)}, governing=(
                dataclasses.replace(WHOLE, match_address=(FIRST,)),
                OTHERS)))
        self.assertEqual(str(FIRST), found.gpu)

    def test_nova_has_a_function_of_ours_too(self):
        self.check(finding.Severity.ERROR, '0000:16:00.5', self.findings(
            {'address': '0000:16:00.5'}, governing=ON_DEMAND))

    def test_nova_has_other_devices(self):
        for spec in ({'vendor_id': '8086'}, {'address': '0000:38:00.0'},
                     {'devname': 'eth0'}):
            self.assertEqual([], self.findings(
                spec, governing=ON_DEMAND))

    def test_gpus_that_are_off_may_be_novas(self):
        self.assertEqual([], self.findings(
            {'vendor_id': '10de'}, governing=(OTHERS,)))


class MdevTypesTest(NovaCase):

    def test_nova_makes_mdevs_too(self):
        self.check(finding.Severity.ERROR, 'nvidia-1',
                   rules_nova.mdev_types(self.facts(mdev_types=('nvidia-1',))))

    def test_nothing_to_say(self):
        for found in (
                self.facts(),
                self.facts(mdev_types=('nvidia-1',), governing=(WHOLE,))):
            self.assertEqual([], list(rules_nova.mdev_types(found)))


class ReleaseTest(NovaCase):

    slices = policy.Policy('s', policy.Mode.MIG, match_address=(FIRST,))

    def findings(self, *governing, **seen):
        return list(rules_nova.release(dataclasses.replace(
            self.facts(governing=(*governing, OTHERS)),
            machine=facts.Machine(**seen))))

    def test_mdevs_are_left_out(self):
        self.check(finding.Severity.ERROR, 'why / Upgrade Nova to 34.0.0',
                   self.findings(self.slices, nova='33.0.0',
                                 mdev_problem='why'))

    def test_mdevs_are_attached(self):
        self.none(self.findings(self.slices, nova='34.0.0'))

    def test_nova_is_elsewhere(self):
        self.check(finding.Severity.UNKNOWN, 'Nova is not installed',
                   self.findings(self.slices))

    def test_nobody_needs_them(self):
        for governing in (WHOLE, FIXED):
            self.assertEqual([], self.findings(
                governing, nova='33.0.0', mdev_problem='why'))


class ServiceTokenTest(NovaCase):

    def findings(self, **nova):
        return list(rules_nova.service_token(
            self.facts(nova=nova)))

    def test_no_token(self):
        self.check(finding.Severity.ERROR, 'send_service_user_token = true',
                   self.findings(has_service_user=True))

    def test_no_user(self):
        self.check(finding.Severity.ERROR, '[service_user]',
                   self.findings(sends_service_token=True))


class GuestsTest(NovaCase):

    resumes = {'resumes_guests': True}

    def findings(self, **more):
        return list(rules_nova.guests(self.facts(**more)))

    def test_guests_without_their_gpus(self):
        self.check(finding.Severity.ERROR, 'resume_guests_state_on_host_boot',
                   self.findings(nova=self.resumes, governing=(WHOLE,)))
        self.check(finding.Severity.ERROR, 'without their GPUs',
                   self.findings(nova=self.resumes, governing=ON_DEMAND))
        for running in (('nova-compute',),
                        ('nova-compute', 'cyborg-gpu-nova-compute')):
            self.check(finding.Severity.ERROR, 'cyborg-gpu-nova-compute',
                       self.findings(nova=self.resumes, governing=(WHOLE,),
                                     commands=running))

    def test_our_command(self):
        self.none(self.findings(nova=self.resumes, governing=(WHOLE,),
                                commands=('cyborg-gpu-nova-compute',)))

    def test_nothing_to_say(self):
        self.assertEqual([], self.findings(governing=(WHOLE,)))
        self.assertEqual([], self.findings(nova=self.resumes))
        self.assertEqual([], self.findings(nova=self.resumes,
                                           governing=(OTHERS,)))


class QuotasTest(NovaCase):

    def findings(self, unified=True, **machine_facts):
        return list(rules_nova.quotas(dataclasses.replace(
            self.facts(nova={'unified_limits': unified}),
            machine=facts.Machine(**machine_facts))))

    def test_release_that_does_not_count(self):
        self.check(finding.Severity.WARNING, 'does not count', self.findings(
            nova='33.0.2', quota_problem='Nova 33.0.2 does not count'))

    def test_release_that_counts(self):
        self.none(self.findings(nova='34.0.0'))

    def test_release_that_is_not_known(self):
        self.check(finding.Severity.UNKNOWN, 'not installed in',
                   self.findings())
