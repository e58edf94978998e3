# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


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
            compute.name_process('nova-compute')
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
