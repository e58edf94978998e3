# SPDX-License-Identifier: Apache-2.0

"""What the cleaning of whole GPUs remembers when its process ends."""

import errno
import os
from unittest import mock

from cyborg_gpu_driver.partition import cleaning as states
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.program import test_cleaning

_STATE = states.State


class CrashTest(test_cleaning.CleaningCase):

    def test_a_restart_forgets_no_tenant(self):
        self.ledger.allocate('server')
        self.look()
        self.start()
        self.assertTrue(self.withheld())
        self.ledger.delete('server')
        self.assertFalse(self.look())
        self.assertEqual(1, self.resets())
        self.assertEqual(['given', 'returned', 'cleaned'], self.whats())

    def test_a_restart_takes_a_clean_gpu_for_clean(self):
        self.use_up()
        self.look()
        self.look()
        self.start()
        self.assertFalse(self.look())
        self.assertEqual(1, self.resets())

    def test_a_record_that_is_lost_or_damaged_is_a_reset(self):
        path = store.Store(self.state_path).path(self.address)
        for number, text in enumerate((None, 'nonsense', '{}'), 1):
            os.unlink(path)
            if text is not None:
                with open(path, 'w', encoding='utf-8') as stream:
                    stream.write(text)
            store.of(self.state_path).check()
            self.start()
            self.assertFalse(self.look())
            self.assertEqual(number, self.resets())

    def test_a_record_that_cannot_be_written_keeps_nobody_waiting(self):
        path = store.Store(self.state_path).path(self.address)
        before = os.stat(path)
        with mock.patch('os.fsync', autospec=True, side_effect=OSError(
                errno.ENOSPC, os.strerror(errno.ENOSPC))):
            self.use_up()
            self.assertTrue(self.withheld())
            self.assertFalse(self.look())
        self.assertEqual(before, os.stat(path))
        self.assertEqual(1, self.resets())
        self.assertEqual(1, self.log.output.count('kept in memory'))
        # Nothing is new, but the look writes what was kept in memory.
        self.assertFalse(self.look())
        self.assertNotEqual(before, os.stat(path))
        self.use_up()
        self.assertIs(_STATE.USED, self.state())
