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

"""Starts threads where the operating system may refuse one.

A container's limit of processes, ``TasksMax`` of systemd and missing memory
make ``Thread.start`` raise RuntimeError. Such a moment passes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


def alive(thread: threading.Thread | None, run: Callable[[], object],
          name: str) -> threading.Thread:
    """Return a thread that lives: the given one, or a new one.

    The caller assigns the result to the variable that had ``thread``, and
    does not change the variable if this raises. So the next caller tries
    again. A thread that has died is replaced too, and one that stayed in the
    parent process at a fork.

    :param run: what a new thread calls.
    :raises RuntimeError: if no thread can be started now.
    """
    if thread is None or not thread.is_alive():
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
    return thread


def begin(run: Callable[..., object], *arguments: Any, name: str
          ) -> threading.Thread | None:
    """Call a function in a thread of its own. Never raises.

    If no thread can be started now, the function runs in the caller's
    thread: the caller waits for the work, and does not lose it.

    :returns: the thread; None if the function has ended already.
    """
    thread = threading.Thread(target=run, args=arguments, name=name,
                              daemon=True)
    try:
        thread.start()
    except RuntimeError:
        try:
            run(*arguments)
        except Exception:
            LOG.exception('%s', name)
        return None
    return thread
