# SPDX-License-Identifier: Apache-2.0

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
