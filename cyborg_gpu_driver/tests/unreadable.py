# SPDX-License-Identifier: Apache-2.0

"""Files that cannot be read."""

import contextlib
import os


@contextlib.contextmanager
def file(path):
    """Make a file unreadable for everybody.

    A directory stands for the file, because root can read any file.
    """
    os.rename(path, f'{path}.away')
    os.mkdir(path)
    try:
        yield
    finally:
        os.rmdir(path)
        os.rename(f'{path}.away', path)
