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

"""A test case whose tests look at one result of an installer."""

import pathlib

import fixtures
from oslotest import base


class WorkCase(base.BaseTestCase):
    """The tests of a class share a directory, ``work``."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        work = fixtures.TempDir()
        work.setUp()
        cls.addClassCleanup(work.cleanUp)
        cls.work = pathlib.Path(work.path)
