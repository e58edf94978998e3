# SPDX-License-Identifier: Apache-2.0


"""The health gpu_health, on simulated machines and a real directory."""

import dataclasses
import os

import fixtures

from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.program import cordons
from cyborg_gpu_driver.program import health as gpu_health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.host import base

_NEEDED = 3


class HealthCase(base.SimulatedTestCase):

    MACHINE = 'a30x4'

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.path = store.Store(self.state_path).path(self.first)
        self.now = 1000.0
        self.changed = []
        self.cloud = services.Services()
        self.cloud.publish_soon = self.changed.append
        self.name = str(self.first)
        self.second = self.addresses[1]
        self.gpu_health = self.start()

    def start(self, **changes):
        """Return a gpu_health, as a new process has it."""
        return gpu_health.GpuHealth(**{
            'machine': self.platform, 'state_path': self.state_path,
            'cloud': self.cloud, 'clean_checks': _NEEDED,
            'clock': lambda: self.now, **changes})

    def check(self, times=1):
        for _ in range(times):
            self.now += 60
            verdicts = self.gpu_health.check(self.reader.snapshot())
        return verdicts

    def event(self, xid, address=None, instance=None):
        self.gpu_health.event(condition.Event(
            address or self.first, xid, instance))

    def trait(self, address=None):
        """Return the end of a GPU's trait, or None if the GPU is well."""
        verdict = self.gpu_health.unhealthy(address or self.first)
        return verdict and verdict.trait[len(health.TRAIT):]

    def said(self, text=''):
        return self.log.about(text or 'is unhealthy') + (
            [] if text else self.log.about('healthy again'))


class CordonTest(HealthCase):
    """Too many errors cordon a GPU."""

    def record(self, address=None):
        return store.of(self.state_path).read(address or self.first)

    def errors(self, *xids):
        for xid in xids:
            self.now += 60
            self.event(xid)

    def test_it_is_off_by_default(self):
        self.errors(*[79] * 9)
        self.assertEqual(((), 0), (self.record().cordons,
                                   self.record().errors))

    def test_errors_count_when_the_gpu_is_healthy_in_between(self):
        self.gpu_health = self.start(cordon_errors=3)
        self.errors(8)
        self.check(_NEEDED)
        self.assertIsNone(self.trait())
        # This stands for another process.
        self.gpu_health = self.start(cordon_errors=3)
        self.errors(8)
        self.assertEqual((), self.record().cordons)
        del self.changed[:]
        self.errors(8)
        self.assertEqual((cordon.Cordon(
            cordon.Source.HEALTH, self.now,
            reason='3 errors, the last was XID 8'),), self.record().cordons)
        self.assertEqual([self.first], self.changed)
        self.check(_NEEDED)
        self.assertIsNone(self.trait())
        self.errors(79)
        self.assertEqual(1, len(self.record().cordons))
        self.assertEqual((), self.record(self.second).cordons)

    def test_what_a_check_finds_is_one_error_while_it_lasts(self):
        self.gpu_health = self.start(cordon_errors=2)
        self.machine.set_health(self.name, uncorrected=1)
        self.check(5)
        self.assertEqual(1, self.record().errors)
        self.errors(8)
        self.assertIn('2 errors', self.record().cordons[0].reason)

    def test_an_operator_lets_them_count_from_0(self):
        self.gpu_health = self.start(cordon_errors=2)
        self.errors(8)
        self.gpu_health.replaced(self.first)
        self.errors(8)
        self.assertEqual((), self.record().cordons)
        self.errors(8)
        cordons.GpuCordons(self.state_path).lift(self.first)
        self.errors(8)
        self.assertEqual((), self.record().cordons)


class EventsTest(HealthCase):

    def test_an_error_makes_unhealthy_at_once_and_is_told_once(self):
        self.event(79)
        self.assertEqual([self.first], self.changed)
        self.assertEqual('XID_79', self.trait())
        self.assertIsNone(self.gpu_health.unhealthy(self.second))
        self.now += 60
        self.event(79)
        self.assertEqual([self.first], self.changed)
        self.event(119)
        self.assertEqual([self.first] * 2, self.changed)
        self.assertEqual(1, len(self.said()))

    def test_what_does_not_count_is_not_even_written(self):
        self.gpu_health = self.start(ignored_xids=[74])
        for xid in (13, 31, 43, 45, 68, 109, 63, 74):
            self.event(xid)
        self.assertEqual([], self.changed)
        self.assertIsNone(self.trait())
        self.assertFalse(os.path.exists(self.path))

    def test_an_instance_is_unhealthy_alone_until_it_is_destroyed(self):
        instance = self.cut(self.first, 5, 2, 2)
        self.event(94, instance=instance.instance_id)
        self.assertEqual([self.first], self.changed)
        self.assertEqual({model.Placement(2, 2)},
                         self.gpu_health.unhealthy_instances(self.first))
        self.assertFalse(self.check()[self.first].is_unhealthy)
        self.assertTrue(self.gpu_health.unhealthy_instances(self.first))
        self.nvml.destroy_gpu_instance(self.device(), instance.instance_id)
        self.check()
        self.assertFalse(self.gpu_health.unhealthy_instances(self.first))
        self.assertEqual(2, len(self.log.about('instance at 2:2')))

    def test_an_instance_whose_error_needs_a_reset_closes_the_gpu(self):
        instance = self.cut(self.first, 5, 2, 2)
        self.event(95, instance=instance.instance_id)
        self.assertEqual([self.first], self.changed)
        self.assertEqual('XID_95', self.trait())
        self.nvml.destroy_gpu_instance(self.device(), instance.instance_id)
        self.gpu_health.instance_gone(self.first, instance.placement)
        self.assertTrue(self.check()[self.first].is_unhealthy)
        self.gpu_health.reset_done(self.first)
        self.assertFalse(self.check()[self.first].is_unhealthy)

    def test_an_instance_that_there_is_not_stands_for_the_gpu(self):
        self.event(95, instance=42)
        self.assertEqual('XID_95', self.trait())
        self.assertFalse(self.gpu_health.unhealthy_instances(self.first))

    def test_it_is_written_before_it_is_told(self):
        self.cloud.publish_soon = lambda address: (
            self.changed.append(self.start().unhealthy(address)))
        self.event(79)
        self.assertTrue(self.changed[0].is_unhealthy)


class ChecksTest(HealthCase):

    def test_unhealthy_and_well_are_said_once_each(self):
        self.machine.set_health(self.name, celsius=95)
        self.assertEqual(health.State.TRANSIENT,
                         self.check(4)[self.first].state)
        self.machine.set_health(self.name, celsius=40)
        self.assertTrue(self.check(_NEEDED - 1)[self.first].is_unhealthy)
        self.assertFalse(self.check(4)[self.first].is_unhealthy)
        self.assertEqual(2, len(self.said(self.name)))
        self.assertFalse(self.said(str(self.second)))

    def test_what_stays_wrong_is_written_once(self):
        self.machine.set_remapped_rows(self.name, pending=True)
        self.check()
        before = os.stat(self.path)
        self.check(3)
        self.assertEqual(before, os.stat(self.path))

    def test_a_restart_of_the_machine_cures(self):
        self.event(79)
        self.machine.reboot()
        self.assertIsNone(self.trait())
        self.gpu_health = self.start()
        self.assertIsNone(self.trait())
        self.assertFalse(self.check()[self.first].is_unhealthy)
        self.assertTrue(self.said('healthy again'))

    def test_while_nvml_is_away_all_stays_as_it_was(self):
        self.event(94)
        self.machine.unload_library()
        self.assertTrue(self.check(9)[self.first].is_unhealthy)
        self.assertFalse(self.gpu_health.unhealthy(self.second))
        self.machine.load_library()
        self.assertFalse(self.check(_NEEDED)[self.first].is_unhealthy)

    def test_a_gpu_given_away_whole_is_not_asked(self):
        self.event(94)
        self.machine.sriov_manage(self.name, enable=False)
        self.machine.bind_driver(self.name, 'vfio-pci')
        self.check()
        self.calls()
        self.assertTrue(self.check(9)[self.first].is_unhealthy)
        self.assertNotIn('nvmlDeviceGetHandleByPciBusId_v2', self.calls())

    def test_another_board_in_its_place(self):
        self.event(79)
        host = self.reader.snapshot()
        self.gpu_health.check(host)
        self.assertEqual('XID_79', self.trait())
        other = dataclasses.replace(host.gpus[0], uuid='GPU-other')
        self.gpu_health.check(dataclasses.replace(host, gpus=(other,)))
        self.assertIsNone(self.trait())

    def test_statuses_change_nothing(self):
        self.event(94)
        self.machine.set_health(self.name, celsius=95)
        instance = self.cut(self.second, 5, 2, 2)
        self.event(94, self.second, instance.instance_id)
        stored = open(self.path, encoding='utf-8').read()
        first, second = self.start().statuses(self.reader.snapshot())[:2]
        self.assertEqual(2, len(first.verdict.reasons))
        self.assertTrue(first.facts.thermal_slowdown)
        self.assertFalse(second.verdict.is_unhealthy)
        self.assertEqual([instance.placement], list(second.parts))
        self.assertEqual(stored, open(self.path, encoding='utf-8').read())


class FileTest(HealthCase):

    def test_without_a_disk_it_goes_on_in_memory(self):
        self.state_path = os.path.join(self.state_path, 'file', 'below')
        with open(os.path.dirname(self.state_path), 'w', encoding='utf-8'):
            pass
        self.gpu_health = self.start()
        self.event(79)
        self.check(2)
        self.event(119)
        self.assertEqual([self.first] * 2, self.changed)
        self.assertEqual(2, len(self.gpu_health.unhealthy(self.first).reasons))
        self.assertEqual(1, len(self.log.about('kept in memory')))
        os.unlink(os.path.dirname(self.state_path))
        self.event(62)
        self.assertEqual(3, len(store.Store(self.state_path).read(
            self.first).health.conditions))
