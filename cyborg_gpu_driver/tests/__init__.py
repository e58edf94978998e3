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

"""Tests of the library.

The files that the tests write need not survive a crash of the machine, so
``os.fsync`` does not wait for the disk. What a killed process has written can
be read without it.

``demo_lib`` starts the released services, for the demo and for the tests. It
is no part of the package.
"""

import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / 'tools'))


def _fsync(descriptor: int) -> None:
    """Check the descriptor, as the real function does, and write nothing."""
    os.fstat(descriptor)


os.fsync = _fsync
