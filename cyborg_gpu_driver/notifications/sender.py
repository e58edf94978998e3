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

"""Sends notifications without making the caller wait.

The option ``[oslo_messaging_notifications] driver`` of ``cyborg.conf`` decides
whether any are sent. A broker that does not answer delays only the thread of
this module.
"""

from __future__ import annotations

import contextlib
import enum
import queue
import threading

import oslo_messaging
from oslo_config import cfg
from oslo_log import log as logging
from oslo_versionedobjects import base

from cyborg_gpu_driver.host import threads

LOG = logging.getLogger(__name__)

_SILENT = frozenset({'', 'noop'})
"""Drivers that send nothing."""
_WAITING = 256
"""Notifications that may wait for the broker."""
_ATTEMPTS = 2
"""Retries after the first attempt to reach the broker. The default is to retry
forever."""
_END = None
_STOP_TIMEOUT = 5
"""Seconds that :meth:`Sender.stop` waits for unsent notifications."""


class Event(enum.Enum):
    """Event type and priority."""

    HEALTH_CHANGED = 'gpu.health.changed', 'warn'
    BIND_ERROR = 'gpu.bind.error', 'error'
    DRIFT_FOUND = 'gpu.drift.found', 'warn'
    DRIFT_RESOLVED = 'gpu.drift.resolved', 'info'
    CORDONED = 'gpu.cordoned', 'info'
    UNCORDONED = 'gpu.uncordoned', 'info'


class Sender:
    """Sends notifications of one host from a thread of its own.

    :param conf: of the service, with its ``transport_url``.
    :param host: the host in the publisher id.
    """

    def __init__(self, conf: cfg.ConfigOpts, host: str):
        self._conf = conf
        self._host = host
        self._waiting: queue.Queue[tuple[Event, base.VersionedObject] | None
                                   ] = queue.Queue(_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_silent = False
        self._lost = 0

    def send(self, event: Event, payload: base.VersionedObject) -> None:
        """Send a notification soon; never waits and never raises.

        If too many wait for the broker, this one is dropped and the log
        says so.
        """
        if self._is_silent:
            return
        # Without a thread the notification waits for the next one.
        with contextlib.suppress(RuntimeError):
            self._start()
        try:
            self._waiting.put_nowait((event, payload))
        except queue.Full:
            self._lost += 1
            if self._lost == 1:
                LOG.error('Notifications are lost: the message broker '
                          'accepts none')

    def stop(self) -> None:
        """Send what is waiting, within a few seconds, and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._waiting.put(_END, timeout=_STOP_TIMEOUT)
        except queue.Full:
            return
        thread.join(_STOP_TIMEOUT)

    def _start(self):
        with self._lock:
            self._thread = threads.alive(self._thread, self._run,
                                         'cyborg-gpu-notifications')

    def _run(self):
        try:
            notifier = self._notifier()
        except Exception as error:
            self._is_silent = True
            LOG.error('No notifications are sent: %s', error)
            return
        if notifier is None:
            self._is_silent = True
            return
        while (item := self._waiting.get()) is not _END:
            event, payload = item
            name, priority = event.value
            try:
                getattr(notifier, priority)({}, name,
                                            payload.obj_to_primitive())
            except Exception as error:
                LOG.warning('Notification %(name)s is lost: %(error)s',
                            {'name': name, 'error': error})
            else:
                self._say_lost()

    def _notifier(self):
        """The notifier; None if the configuration has no driver that sends.
        """
        transport = oslo_messaging.get_notification_transport(self._conf)
        if _SILENT.issuperset(self._conf.oslo_messaging_notifications.driver):
            return None
        return oslo_messaging.Notifier(
            transport, publisher_id=f'cyborg-gpu.{self._host}',
            retry=_ATTEMPTS)

    def _say_lost(self):
        if self._lost:
            LOG.warning('%d notifications were lost', self._lost)
            self._lost = 0
