# SPDX-License-Identifier: Apache-2.0

"""A process that may start no more threads."""

import contextlib
import threading
from unittest import mock


@contextlib.contextmanager
def reached(name=''):
    """Let no thread start, as the operating system does at its limit.

    :param name: a part of the names of the threads that do not start.
    """
    start = threading.Thread.start

    def refuse(thread):
        if name in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with mock.patch.object(threading.Thread, 'start', refuse):
        yield
