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
