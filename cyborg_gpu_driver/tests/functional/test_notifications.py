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


from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import test_disable
from cyborg_gpu_driver.tests.functional import test_reconcile
from cyborg_gpu_driver.tests.unit.notifications import listening


class NotificationTest(test_disable.DisableCase):
    """What a listener on the message bus receives from cyborg-agent."""

    def before_start(self):
        # The end of another cloud would take the bus away.
        self.listener = self.useFixture(listening.Listener(cfg.CONF))

    def next(self, expected):
        """Return the data of the next notification of a type; skip others."""
        event = None
        while event != expected:
            event, _, publisher, payload = self.listener.next()
        self.assertEqual('cyborg-gpu.compute1', publisher)
        return payload['cyborg_gpu_object.data']

    def test_a_gpu_that_is_disabled_and_enabled(self):
        self.disable()
        self.report()
        data = self.next('gpu.cordoned')
        self.assertLess(0, data.pop('since'))
        self.assertEqual({'host': 'compute1', 'gpu': test_disable.SECOND,
                          'source': 'cyborg', 'who': '', 'reason': ''}, data)
        self.report()
        self.enable()
        self.report()
        self.assertEqual(test_disable.SECOND,
                         self.next('gpu.uncordoned')['gpu'])

    @scope.only_in_all
    def test_health(self):
        world = simulator.Machine.load(self.machine, self.hardware_path)
        world.set_health(test_disable.FIRST, uncorrected=1)
        self.report()
        data = self.next('gpu.health.changed')
        self.assertEqual((test_disable.FIRST, None, 'ok'),
                         (data['gpu'], data['instance'], data['old_state']))
        self.assertNotEqual('ok', data['state'])
        self.assertEqual(1, len(data['reasons']))

    @scope.only_in_all
    def test_a_bind_that_fails(self):
        handle = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a13'
        self.assertRaises(exception.GpuDriverError, self.driver.bind,
                          '0000:07:00.4', 'nvidia-1', handle)
        data = self.next('gpu.bind.error')
        self.assertEqual(
            ('0000:07:00.4', handle, 'nvidia-1'),
            (data['gpu'], data['attach_handle'], data['asked_type']))
        self.assertIn('nvidia-1', data['reason'])


class DriftTest(test_reconcile.ReconcileCase):

    def before_start(self):
        self.listener = self.useFixture(listening.Listener(cfg.CONF))

    @scope.only_in_all
    def test_drift(self):
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_1G_10GB'))
        (mdev,) = self.mdevs()
        self.remove_mdev(mdev)
        for expected in ('gpu.drift.found', 'gpu.drift.resolved'):
            self.report()
            event, _, _, payload = self.listener.next()
            data = payload['cyborg_gpu_object.data']
            self.assertEqual((expected, 'vgpu-gone', mdev, True),
                             (event, data['kind'], data['subject'],
                              data['is_repaired']))
        self.cloud.unbind(server)
