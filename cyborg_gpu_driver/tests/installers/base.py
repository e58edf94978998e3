# SPDX-License-Identifier: Apache-2.0

"""A test case whose tests look at one result of an installer."""

import pathlib
import shutil
import subprocess

import fixtures
from oslotest import base

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The programs of the distribution use its Python and its packages.
DISTRIBUTION = {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL': 'C.UTF-8'}


class WorkCase(base.BaseTestCase):
    """The tests of a class share a directory, ``work``."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        work = fixtures.TempDir()
        work.setUp()
        cls.addClassCleanup(work.cleanUp)
        cls.work = pathlib.Path(work.path)

    @classmethod
    def need(cls, *programs):
        """Skip the tests if a program of the distribution is missing."""
        for name in programs:
            if not shutil.which(name, path=DISTRIBUTION['PATH']):
                raise cls.skipException(f'{name} is not installed')

    @classmethod
    def copy_source(cls):
        """Copy what git knows, without git, as a source package has it."""
        source = cls.work / 'source'
        source.mkdir()
        subprocess.run(
            ['sh', '-c', 'git ls-files -z | tar c --null -T - | tar x -C "$0"',
             source], cwd=ROOT, check=True)
        return source
