# SPDX-License-Identifier: Apache-2.0

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
