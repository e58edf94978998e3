# SPDX-License-Identifier: Apache-2.0

"""Files that take long to make, which all test processes copy.

They are kept in the virtual environment, so that parallel test processes, and
the next run, share them.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import glob
import hashlib
import os
import shutil
import sqlite3
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable

import cyborg_gpu_driver

_PACKAGE = os.path.dirname(cyborg_gpu_driver.__file__)
# Read at import, because a test's own temporary directory is removed with it.
_TEMPORARY = tempfile.gettempdir()


def find(kind: str, made_from: str, make: Callable[[str], None],
         seconds: float = float('inf')) -> str:
    """Return a directory of files, which are made at first use.

    :param kind: what the files are, for their name.
    :param made_from: all that the files depend on.
    :param make: makes the files in an empty directory.
    :param seconds: how long the files are used.
    """
    digest = hashlib.sha256(made_from.encode()).hexdigest()
    path = os.path.join(_root(), f'{kind}-{digest[:20]}')
    with open(path + '.lock', 'w', encoding='utf-8') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not (_is_younger(path, seconds) and _is_whole(path)):
                _remove_old(kind, 2 * seconds)
                _make(path, kind, make)
        finally:
            # A fork of this process may have the file, too.
            fcntl.flock(lock, fcntl.LOCK_UN)
    return path


@functools.cache
def services() -> str:
    """Return the name and the version of every installed distribution."""
    installed = glob.glob('*.dist-info',
                          root_dir=sysconfig.get_path('purelib'))
    return ' '.join([sys.version, *sorted(installed)])


def _hash_code():
    """Return a hash of this package, without what a test module has."""
    digest = hashlib.sha256()
    for directory, names, files in os.walk(_PACKAGE):
        names[:] = sorted(set(names) - {'__pycache__', 'unit'})
        for name in sorted(files):
            if not name.startswith('test_'):
                path = os.path.join(directory, name)
                with open(path, 'rb') as stream:
                    digest.update(f'{path}\n'.encode() + stream.read())
    return digest.hexdigest()


# At import, because the files may change while the tests run.
CODE = _hash_code()
"""A hash of the code that a report is made by."""


def _make(path, kind, make):
    shutil.rmtree(path, ignore_errors=True)
    directory = tempfile.mkdtemp(prefix=f'{kind}-new-', dir=_root())
    try:
        make(directory)
        os.rename(directory, path)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _remove_old(kind, seconds):
    for path in glob.glob(os.path.join(_root(), f'{kind}-*')):
        if not _is_younger(path, seconds):
            if path.endswith('.lock'):
                os.remove(path)
            else:
                shutil.rmtree(path, ignore_errors=True)


def _is_younger(path, seconds):
    try:
        return time.time() - os.stat(path).st_mtime < seconds
    except FileNotFoundError:
        return False


def _is_whole(path):
    """Whether each database can be read and has tables."""
    databases = glob.glob(os.path.join(path, '*.sqlite'))
    return bool(databases) and all(map(_is_database, databases))


def _is_database(path):
    try:
        # Without a file for the write-ahead log, which would be copied.
        with contextlib.closing(sqlite3.connect(
                f'file:{path}?immutable=1', uri=True)) as connection:
            return (connection.execute('PRAGMA quick_check').fetchall()
                    == [('ok',)]
                    and connection.execute(
                        'SELECT 1 FROM sqlite_master').fetchone() is not None)
    except sqlite3.DatabaseError:
        return False


@functools.cache
def _root():
    """Return the directory of all files: a temporary one if need be."""
    path = os.path.join(sys.prefix, 'cyborg-gpu-tests')
    if sys.prefix != sys.base_prefix:
        with contextlib.suppress(OSError):
            os.makedirs(path, exist_ok=True)
    if not os.access(path, os.W_OK):
        path = tempfile.mkdtemp(prefix='cyborg-gpu-tests-', dir=_TEMPORARY)
        atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
