# SPDX-License-Identifier: Apache-2.0

"""What is known about whole GPUs, and what follows from new facts."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.partition import cleaning

_STATE = cleaning.State


def _known(state, *tenants, generation=5, ours=0, reason=''):
    return cleaning.Known(state, tenants, generation, ours, reason)


def _seen(*tenants, generation=5, ours=0):
    return cleaning.Seen(tenants, generation, ours)


class FollowingTest(base.BaseTestCase):

    def assert_follows(self, state, known, seen):
        found = cleaning.following(known, seen)
        self.assertIs(state, found.state)
        self.assertEqual(state is not _STATE.FREE, found.withheld)
        return found

    def test_one_that_cyborg_does_not_know_yet_had_no_tenant(self):
        found = self.assert_follows(_STATE.FREE, None, None)
        found = self.assert_follows(_STATE.FREE, found, _seen(generation=7))
        self.assertEqual(7, found.generation)

    def test_one_that_only_we_do_not_know_may_have_had_a_tenant(self):
        self.assert_follows(_STATE.DIRTY, None, _seen())
        self.assert_follows(_STATE.USED, None, _seen('a'))

    def test_given_and_returned(self):
        free = _known(_STATE.FREE)
        self.assertEqual(free, cleaning.following(free, _seen()))
        used = self.assert_follows(_STATE.USED, free,
                                   _seen('a', generation=6))
        self.assertEqual(used, cleaning.following(
            used, _seen('a', generation=6)))
        # Deleting an allocation does not raise the generation.
        dirty = self.assert_follows(_STATE.DIRTY, used, _seen(generation=6))
        self.assertEqual(('a',), dirty.tenants)

    def test_who_came_and_went_between_two_looks_is_noticed(self):
        self.assert_follows(_STATE.DIRTY, _known(_STATE.FREE),
                            _seen(generation=6))
        self.assert_follows(_STATE.DIRTY, _known(_STATE.FREE),
                            _seen(generation=4))

    def test_what_we_write_is_no_tenant(self):
        found = self.assert_follows(
            _STATE.FREE, _known(_STATE.FREE, generation=5, ours=2),
            _seen(generation=7, ours=4))
        self.assertEqual((7, 4), (found.generation, found.ours))
        self.assert_follows(
            _STATE.DIRTY, _known(_STATE.FREE, generation=5, ours=2),
            _seen(generation=8, ours=4))

    def test_what_is_not_clean_stays_so(self):
        for state in (_STATE.DIRTY, _STATE.CLEANING, _STATE.STUCK):
            found = self.assert_follows(
                _STATE.DIRTY, _known(state, 'a', reason='why'), _seen())
            self.assertEqual((('a',), 'why'), (found.tenants, found.reason))
            self.assert_follows(_STATE.USED, _known(state), _seen('b'))
            self.assertEqual(_known(state),
                             cleaning.following(_known(state), None))

    def test_a_provider_that_goes_takes_its_generation_along(self):
        found = self.assert_follows(_STATE.FREE, _known(_STATE.FREE), None)
        self.assert_follows(_STATE.FREE, found, _seen(generation=1))
        used = _known(_STATE.USED, 'a')
        self.assertEqual(used, cleaning.following(used, None))


class DoubtTest(base.BaseTestCase):

    def test_a_tenant_of_a_clean_gpu(self):
        for known, seen in (
                (None, _seen('a')), (None, None),
                (_known(_STATE.FREE), _seen()),
                (_known(_STATE.FREE), _seen('a', generation=6)),
                (_known(_STATE.FREE, ours=1),
                 _seen('a', generation=7, ours=2)),
                (_known(_STATE.FREE, generation=None),
                 _seen('a', generation=6)),
                (_known(_STATE.USED, 'a'), _seen('a', generation=9)),
                (_known(_STATE.USED, 'a', 'b'), _seen('b')),
                (_known(_STATE.DIRTY, 'a'), _seen())):
            self.assertEqual('', cleaning.doubt(known, seen), (known, seen))

    def test_a_tenant_who_may_have_got_what_another_left(self):
        for known, seen, words in (
                (_known(_STATE.FREE), _seen('b', generation=7),
                 'more than once'),
                (_known(_STATE.USED, 'a'), _seen('b'), 'other servers used '
                 'it'),
                (_known(_STATE.DIRTY, 'a'), _seen('b'), 'before it was'),
                (_known(_STATE.CLEANING), _seen('b'), 'before it was'),
                (_known(_STATE.STUCK), _seen('b'), 'before it was')):
            self.assertIn(words, cleaning.doubt(known, seen))


class RemainsTest(base.BaseTestCase):

    before = cleaning.Traces('nvidia', 'GPU-1', 0, 70000, 81920, 3)
    after = cleaning.Traces('nvidia', 'GPU-1', 0, 4, 81920, 0)

    def test_a_clean_gpu(self):
        self.assertEqual('', cleaning.remains(self.before, self.after))
        blind = cleaning.Traces('vfio-pci')
        self.assertEqual('', cleaning.remains(blind, blind))
        self.assertEqual('', cleaning.remains(
            dataclasses.replace(self.before, ecc_uncorrected=0),
            dataclasses.replace(self.after, ecc_uncorrected=1)))

    def test_each_thing_that_is_left(self):
        for fact, value, words in (
                ('driver', None, 'its driver was nvidia'),
                ('uuid', 'GPU-2', 'instead of GPU-1'),
                ('processes', 1, '1 process'),
                ('memory_used_mib', 1281, '1281 MiB'),
                ('ecc_uncorrected', 3, 'memory errors')):
            self.assertIn(words, cleaning.remains(
                self.before, dataclasses.replace(self.after,
                                                 **{fact: value})))
        self.assertEqual('', cleaning.remains(
            self.before, dataclasses.replace(self.after,
                                             memory_used_mib=1280)))
