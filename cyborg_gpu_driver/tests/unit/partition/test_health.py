# SPDX-License-Identifier: Apache-2.0


"""What makes a GPU unhealthy, what heals it, and what is only noise."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health

_CLEAN = condition.Facts(
    answered=True, ecc_uncorrected=0, remap_pending=False,
    remap_failed=False, retired_pending=False, thermal_slowdown=False,
    recovery_action=0)
_OLD_DRIVER = dataclasses.replace(_CLEAN, recovery_action=None)
_PLACE = model.Placement(2, 2)
_NOW = 1000.0


def _facts(**changes):
    return dataclasses.replace(_CLEAN, **changes)


def _after_checks(conditions, facts, number, needed=3, live=None):
    for turn in range(number):
        conditions = health.checked(conditions, facts, needed, _NOW + turn,
                                    live)
    return conditions


def _after(facts):
    return health.judge(health.seen((), facts, _NOW))


class CountingTest(base.BaseTestCase):

    def test_what_counts(self):
        for xids, ignored, expected in (
                # Errors of applications, and what the catalogue ignores.
                ((13, 31, 43, 45, 68, 109, 63, 92, 154, 157), (), False),
                # All else, also what is not known.
                ((48, 64, 74, 79, 94, 95, 119, 140, 999), (), True),
                # What an operator ignores.
                ((74,), {74}, False), ((79,), {74}, True)):
            for xid in xids:
                self.assertIs(expected, health.counts(xid, ignored), xid)

    def test_no_xid_is_in_two_classes(self):
        self.assertFalse(health.APPLICATION_XIDS & health.IGNORED_XIDS)
        self.assertFalse(set(health.RESET_XIDS) & (
            health.APPLICATION_XIDS | health.IGNORED_XIDS))

    def test_a_storm_is_counted_once_in_a_while(self):
        once = health.noted((), 94, _NOW)
        self.assertIs(once, health.noted(once, 94, _NOW + 5))
        again = health.noted(once, 94, _NOW + 60)
        self.assertEqual([(2, _NOW, _NOW + 60)], [
            (item.count, item.first, item.last) for item in again])

    def test_one_that_comes_again_heals_from_the_start(self):
        conditions = _after_checks(health.noted((), 94, _NOW), _CLEAN, 2)
        conditions = health.noted(conditions, 94, _NOW + 5)
        self.assertTrue(_after_checks(conditions, _CLEAN, 2))
        self.assertFalse(_after_checks(conditions, _CLEAN, 3))


class JudgingTest(base.BaseTestCase):

    def test_each_answer_that_is_not_well(self):
        for changes, trait in (
                ({'lost': True}, 'LOST'),
                ({'reset_required': True}, 'RESET_REQUIRED'),
                ({'remap_pending': True}, 'REMAP_PENDING'),
                ({'retired_pending': True}, 'RETIRED_PENDING'),
                ({'ecc_uncorrected': 1}, 'ECC'),
                ({'thermal_slowdown': True}, 'THERMAL'),
                ({'recovery_action': 1}, 'NEEDS_GPU_RESET'),
                ({'recovery_action': 2}, 'NEEDS_NODE_REBOOT'),
                ({'recovery_action': 99}, 'NEEDS_ACTION_99')):
            verdict = _after(_facts(**changes))
            self.assertEqual(
                (health.State.TRANSIENT, f'CUSTOM_GPU_UNHEALTHY_{trait}', 1),
                (verdict.state, verdict.trait, len(verdict.reasons)),
                changes)

    def test_answers_that_are_well(self):
        for changes in {'recovery_action': 5}, {'remapped_rows': 512}:
            self.assertEqual(health.WELL, _after(_facts(**changes)), changes)

    def test_a_row_that_cannot_be_remapped_is_for_good(self):
        verdict = _after(_facts(remap_failed=True, lost=True))
        self.assertEqual(
            (health.State.PERMANENT, 'CUSTOM_GPU_UNHEALTHY_REMAP_FAILED', 2),
            (verdict.state, verdict.trait, len(verdict.reasons)))

    def test_the_first_of_many_names_the_trait(self):
        conditions = health.noted(health.noted((), 79, _NOW), 48, _NOW + 1)
        verdict = health.judge(conditions)
        self.assertEqual('CUSTOM_GPU_UNHEALTHY_XID_79', verdict.trait)
        self.assertEqual(_NOW, verdict.since)
        self.assertEqual(('XID 79 (fell off the bus)',
                          'XID 48 (uncorrected ECC error)'),
                         verdict.reasons)

    def test_an_instance_is_unhealthy_alone(self):
        conditions = health.noted((), 94, _NOW, _PLACE, 3)
        self.assertEqual(health.WELL, health.judge(conditions))
        self.assertEqual('CUSTOM_GPU_UNHEALTHY_XID_94',
                         health.judge(conditions, _PLACE).trait)
        self.assertEqual([_PLACE], health.unhealthy_parts(conditions))
        self.assertEqual(2, len(health.noted(conditions, 94, _NOW)))


class HealingTest(base.BaseTestCase):

    def test_clean_checks_heal_what_needs_no_reset(self):
        for xid, facts, heals in (
                (94, _OLD_DRIVER, True), (79, _OLD_DRIVER, False),
                # Unless the driver says that the GPU needs none.
                (95, _CLEAN, True)):
            conditions = health.noted((), xid, _NOW)
            self.assertTrue(_after_checks(conditions, facts, 2), xid)
            self.assertIs(heals, not _after_checks(conditions, facts, 99))
            self.assertEqual((), health.after_reset(conditions))

    def test_no_answer_is_no_clean_check(self):
        conditions = health.noted((), 94, _NOW)
        self.assertEqual(conditions, _after_checks(
            conditions, condition.Facts(), 99))

    def test_nor_is_one_that_finds_something_else(self):
        conditions = health.noted((), 94, _NOW)
        found = _after_checks(conditions, _facts(thermal_slowdown=True), 99)
        self.assertEqual(['XID_94', 'THERMAL'],
                         [item.code for item in found])

    def test_an_answer_that_gets_well_heals_with_clean_checks(self):
        conditions = _after_checks((), _facts(thermal_slowdown=True), 1)
        conditions = _after_checks(conditions, _CLEAN, 2)
        self.assertTrue(conditions)
        conditions = _after_checks(
            conditions, _facts(thermal_slowdown=True), 1)
        self.assertTrue(_after_checks(conditions, _CLEAN, 2))
        self.assertFalse(_after_checks(conditions, _CLEAN, 3))

    def test_what_cannot_be_read_is_not_over(self):
        """For example, remapped rows while a MIG GPU has instances."""
        conditions = _after_checks((), _facts(remap_pending=True), 1)
        self.assertEqual(conditions, _after_checks(
            conditions, _facts(remap_pending=None), 99))
        self.assertFalse(_after_checks(conditions, _CLEAN, 3))

    def test_a_gpu_that_answers_again_is_well_after_clean_checks(self):
        silent = condition.Facts(answered=True, not_answering=True)
        conditions = _after_checks((), silent, 9)
        self.assertEqual('CUSTOM_GPU_UNHEALTHY_NOT_ANSWERING',
                         health.judge(conditions).trait)
        self.assertTrue(_after_checks(conditions, _OLD_DRIVER, 2))
        self.assertFalse(_after_checks(conditions, _OLD_DRIVER, 3))

    def test_what_is_for_good_survives_all(self):
        conditions = _after_checks((), _facts(remap_failed=True), 1)
        self.assertTrue(_after_checks(conditions, _CLEAN, 99))
        self.assertEqual(conditions, health.after_reset(conditions))

    def test_an_error_that_needs_a_reset_concerns_the_whole_gpu(self):
        for xid in health.RESET_XIDS:
            conditions = health.noted((), xid, _NOW, _PLACE, 3)
            self.assertTrue(health.judge(conditions).is_unhealthy, xid)
            self.assertEqual([], health.unhealthy_parts(conditions))
            # The slice is destroyed; other slices come and go.
            conditions = health.without_instance(conditions, _PLACE)
            conditions = health.checked(conditions, _OLD_DRIVER, 1, _NOW, ())
            self.assertTrue(health.judge(conditions).is_unhealthy, xid)
            self.assertEqual((), health.after_reset(conditions))

    def test_an_instance_takes_what_it_had_with_it(self):
        conditions = health.noted((), 94, _NOW, _PLACE, 3)
        conditions = health.noted(conditions, 79, _NOW)
        for live, left in (({(3, _PLACE)}, 2), (None, 2),
                           ({(4, _PLACE)}, 1), (set(), 1)):
            found = health.checked(conditions, _OLD_DRIVER, 3, _NOW, live)
            self.assertEqual(left, len(found), live)
        self.assertEqual(1, len(health.without_instance(conditions, _PLACE)))


class PciTest(base.BaseTestCase):
    """A GPU of which only the PCI bus is read."""

    def pci(self, *codes):
        return condition.Facts(by_pci=True, pci=codes)

    def test_each_is_a_condition_while_the_bus_says_so(self):
        for code in condition.PCI:
            conditions = _after_checks((), self.pci(code), 1)
            verdict = health.judge(conditions)
            self.assertEqual(health.State.TRANSIENT, verdict.state)
            self.assertEqual(health.TRAIT + code, verdict.trait)
            self.assertNotEqual((code,), verdict.reasons)
            self.assertEqual((), _after_checks(conditions, self.pci(), 1))
            self.assertEqual((), _after_checks(conditions, _CLEAN, 1))

    def test_the_bus_heals_nothing_else(self):
        conditions = health.noted((), 94, _NOW)
        self.assertEqual(conditions, _after_checks(conditions, self.pci(), 9))
