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

"""Work that the exporter repeats at an interval, independent of scrapes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

INTERVAL = 15.0
"""Seconds from one round to the next: Prometheus' default interval is 60 s,
and 15 s in its examples."""
STALE = 60.0
"""Seconds after which the result of a round is too old: four failed rounds."""


def start(act: Callable[[], object], name: str) -> None:
    """Call ``act`` now and at each interval, in a daemon thread.

    :param name: name of the thread, and of the work in the log.
    """
    threading.Thread(target=_run, args=(act, name), daemon=True,
                     name=f'cyborg-gpu-{name}').start()


def _run(act: Callable[[], object], name: str) -> None:
    while True:
        begun = time.monotonic()
        try:
            act()
        except Exception:
            LOG.exception('Reading the %s failed', name)
        time.sleep(max(0.0, begun + INTERVAL - time.monotonic()))
