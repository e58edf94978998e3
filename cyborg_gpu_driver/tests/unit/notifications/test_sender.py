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


import threading

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver.notifications import payloads
from cyborg_gpu_driver.notifications import sender
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests import thread_limit
from cyborg_gpu_driver.tests.unit.notifications import listening

_THREAD = 'cyborg-gpu-notifications'


def _payload(gpu='0000:07:00.0'):
    return payloads.CordonPayload(host='compute1', gpu=gpu)


class SenderTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = cfg.ConfigOpts()
        self.conf([], default_config_files=[], default_config_dirs=[])
        self.log = self.useFixture(fixtures.FakeLogger())

    def sender(self):
        made = sender.Sender(self.conf, 'compute1')
        self.addCleanup(made.stop)
        return made

    def test_what_is_sent(self):
        listener = self.useFixture(listening.Listener(self.conf))
        sending = self.sender()
        sending.send(sender.Event.CORDONED, _payload())
        sending.send(sender.Event.BIND_ERROR, _payload('0000:0f:00.0'))
        # Each priority has a queue of its own.
        first, second = sorted((listener.next(), listener.next()),
                               key=lambda taken: taken[0], reverse=True)
        self.assertEqual(
            ('gpu.cordoned', 'info', 'cyborg-gpu.compute1', {
                'cyborg_gpu_object.name': 'CordonPayload',
                'cyborg_gpu_object.namespace': 'cyborg_gpu_driver',
                'cyborg_gpu_object.version': '1.1',
                'cyborg_gpu_object.data': {
                    'host': 'compute1', 'gpu': '0000:07:00.0'}}),
            self.plain(first))
        self.assertEqual(('gpu.bind.error', 'error'), second[:2])

    @staticmethod
    def plain(taken):
        *rest, payload = taken
        return (*rest, {key: value for key, value in payload.items()
                        if not key.endswith('.changes')})

    def test_stop_sends_what_waits(self):
        listener = self.useFixture(listening.Listener(self.conf))
        sending = self.sender()
        for _ in range(5):
            sending.send(sender.Event.CORDONED, _payload())
        sending.stop()
        self.assertNotIn(_THREAD, {thread.name for thread
                                   in threading.enumerate()})
        for _ in range(5):
            listener.next()

    def test_a_process_with_too_many_threads_sends_later(self):
        listener = self.useFixture(listening.Listener(self.conf))
        sending = self.sender()
        with thread_limit.reached():
            sending.send(sender.Event.CORDONED, _payload())
            sending.stop()
            sending.send(sender.Event.CORDONED, _payload())
        sending.send(sender.Event.CORDONED, _payload())
        for _ in range(3):
            listener.next()

    def test_without_a_driver_nothing_is_sent(self):
        for driver in ('noop', ''):
            self.useFixture(listening.Listener(self.conf, driver))
            sending = self.sender()
            sending.send(sender.Event.CORDONED, _payload())
            sending.stop()
            sending.send(sender.Event.CORDONED, _payload())
            self.assertNotIn(_THREAD, {thread.name for thread
                                       in threading.enumerate()})

    def test_too_many_are_dropped(self):
        self.useFixture(listening.Listener(self.conf))
        blocked = threading.Event()
        self.addCleanup(blocked.set)

        class Slow:
            """A payload that keeps the thread busy."""

            @staticmethod
            def obj_to_primitive():
                blocked.wait(scope.HANG)
                return {}
        sending = self.sender()
        for _ in range(300):
            sending.send(sender.Event.CORDONED, Slow())
        self.assertEqual(1, self.log.output.count('Notifications are lost'))
        blocked.set()
        sending.stop()
        self.assertRegex(self.log.output, '4[0-9] notifications were lost')

    def test_a_transport_that_cannot_be_used(self):
        self.useFixture(listening.Listener(self.conf))
        self.conf.set_override('transport_url', 'nothing://')
        sending = self.sender()
        sending.send(sender.Event.CORDONED, _payload())
        sending.stop()
        self.assertIn('No notifications are sent', self.log.output)
