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

"""The parts of the weigher that need Nova."""

from __future__ import annotations

import subprocess
import sys

from oslotest import base


class OptionsTest(base.BaseTestCase):

    def test_only_the_weigher_needs_nova(self):
        names = ('conf.weigher', 'nova.weigher_reader')
        program = ('import sys; sys.modules["nova"] = None; '
                   + '; '.join(f'import cyborg_gpu_driver.{name}'
                               for name in names))
        done = subprocess.run([sys.executable, '-c', program],
                              capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
