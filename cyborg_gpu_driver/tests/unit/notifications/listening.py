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

"""Receive notifications from a broker in this process."""

from __future__ import annotations

import queue
import uuid

import fixtures
import oslo_messaging
from oslo_messaging import conffixture

from cyborg_gpu_driver.tests import scope


class Listener(fixtures.Fixture):
    """Lets a service send notifications, and receives them.

    :param conf: the configuration of the service.
    :param driver: how the service sends.
    :param url: of the broker; by default it is in this process.
    :param exchange: by default one for this test only, whose queues are
        empty.
    """

    def __init__(self, conf, driver='messaging', url='fake:/',
                 exchange=None):
        super().__init__()
        self._url = url
        self._exchange = exchange or uuid.uuid4().hex
        self._conf = conf
        self._driver = driver
        self._taken = queue.Queue()

    def _setUp(self):
        made = self.useFixture(conffixture.ConfFixture(self._conf))
        made.transport_url = self._url
        self._conf.set_override('control_exchange', self._exchange)
        self.addCleanup(self._conf.clear_override, 'control_exchange')
        self._conf.set_override('driver', [self._driver],
                                'oslo_messaging_notifications')
        self.addCleanup(self._conf.clear_override, 'driver',
                        'oslo_messaging_notifications')
        listener = oslo_messaging.get_notification_listener(
            oslo_messaging.get_notification_transport(self._conf),
            [oslo_messaging.Target(topic='notifications')], [self],
            executor='threading')
        listener.start()
        self.addCleanup(listener.wait)
        self.addCleanup(listener.stop)

    def _take(self, priority, publisher, event, payload):
        self._taken.put((event, priority, publisher, payload))

    def info(self, ctxt, publisher_id, event_type, payload, metadata):
        self._take('info', publisher_id, event_type, payload)

    def warn(self, ctxt, publisher_id, event_type, payload, metadata):
        self._take('warn', publisher_id, event_type, payload)

    def error(self, ctxt, publisher_id, event_type, payload, metadata):
        self._take('error', publisher_id, event_type, payload)

    def next(self, timeout=scope.HANG):
        """Return event type, priority, publisher ID and payload of the next.

        :raises queue.Empty: if none comes in time.
        """
        return self._taken.get(timeout=timeout)
