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

"""How ``tools/test`` names the tests that failed."""

import pathlib
import subprocess
import tempfile

from oslotest import base

_SCRIPT = pathlib.Path(__file__).resolve().parents[4] / 'tools' / 'test'
_LOG = '''\
{0} tests.LifeTest.test_life(whole GPU) [0.5s] ... ok
{1} tests.LifeTest.test_life(two modes) [1.027933s] ... FAILED

Captured traceback:
~~~~~~~~~~~~~~~~~~~
    Traceback (most recent call last):

      File "/usr/lib/python3/testtools/case.py", line 1, in run
    self.run()

      File "/cyborg_gpu_driver/tests/test_life.py", line 65, in test_life
    self.boot()
    ^^^^^^^^^

      File "/cyborg_gpu_driver/tests/base.py", line 9, in boot
    self.until(lambda: self.servers())

    tests.MismatchError: !=:
reference = []
actual    = ['a server']


Captured traceback-1:
~~~~~~~~~~~~~~~~~~~~~
    Traceback (most recent call last):

    ValueError: of a cleanup

{0} tests.OtherTest.test_other [2.0s] ... FAILED

Captured pythonlogging:
~~~~~~~~~~~~~~~~~~~~~~~
    DEBUG [a.logger] KeyError: not this

Captured traceback:
~~~~~~~~~~~~~~~~~~~
    Traceback (most recent call last):
      File "tests.py", line 1, in test_other
    KeyError: 'x'

======
Totals
======
'''


class FailuresTest(base.BaseTestCase):

    def test_each_is_named_with_its_exception_and_lines(self):
        with tempfile.NamedTemporaryFile('w') as log:
            log.write(_LOG)
            log.flush()
            found = subprocess.run(
                ['bash', '-c', '. "$1"; name_failures "$2"', '-', str(_SCRIPT),
                 log.name], capture_output=True, text=True, check=True)
        self.assertEqual('''\
FAILED tests.LifeTest.test_life(two modes)
    tests.MismatchError: !=: reference = [] actual    = ['a server']
    at test_life.py:65 base.py:9
FAILED tests.OtherTest.test_other
    KeyError: 'x'
''', found.stdout)
