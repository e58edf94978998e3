# SPDX-License-Identifier: Apache-2.0

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
