# SPDX-License-Identifier: Apache-2.0


"""The start command on a host without Nova."""

from __future__ import annotations

import contextlib
import io
import os
import sys

import fixtures
from oslotest import base

from cyborg_gpu_driver.nova import compute


class MainTest(base.BaseTestCase):

    def test_a_name_that_cannot_be_set_stops_nothing(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.compute._COMM', '/nonexistent/comm'))
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            compute.name_process()
        self.assertIn('/nonexistent/comm cannot be written',
                      errors.getvalue())

    def test_without_nova_it_says_so(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.compute._COMM', os.devnull))
        self.useFixture(fixtures.MonkeyPatch(
            'sys.modules', {**sys.modules, 'nova': None}))
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(1, compute.main())
        self.assertIn('Nova cannot be imported', errors.getvalue())
        self.assertIn('nova-compute was not started', errors.getvalue())
