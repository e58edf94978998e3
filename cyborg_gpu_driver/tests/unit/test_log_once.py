# SPDX-License-Identifier: Apache-2.0


"""Messages that are logged once."""

from oslotest import base

from cyborg_gpu_driver import log_once


class LogOnceTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.said = log_once.LogOnce()

    def test_a_reason_is_new_until_it_has_been_logged(self):
        self.assertTrue(self.said.is_new('full'))
        self.assertFalse(self.said.is_new('full'))
        self.assertTrue(self.said.is_new('lost'))
        self.assertTrue(self.said.is_new('full'))

    def test_what_comes_back_is_new(self):
        self.said.over()
        self.said.is_new('full')
        self.said.over()
        self.assertTrue(self.said.is_new('full'))
