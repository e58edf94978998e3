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

"""Run a program that ends when the tests end, even if they are killed.

usage: python -m cyborg_gpu_driver.tests.ironic.leash PROGRAM ARGUMENT...
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def put_on(sign: signal.Signals) -> None:
    """Have the kernel signal this process when its parent process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sign)


if __name__ == '__main__':
    put_on(signal.SIGTERM)
    os.execv(sys.argv[1], sys.argv[1:])
