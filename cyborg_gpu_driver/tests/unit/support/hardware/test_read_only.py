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


"""Inspecting a machine changes nothing on it."""

import json
import re

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.simulator.abi import symbols
from cyborg_gpu_driver.support.hardware import calls
from cyborg_gpu_driver.support.hardware import document
from cyborg_gpu_driver.tests.unit.support.hardware import base

_L40S_24Q = 1155


class TestReadOnly(base.TestCase):

    def setUp(self):
        super().setUp()
        self.seen = self.open('dgx-a100-80')
        self.populate(self.seen)
        self.conf = cfg.ConfigOpts()
        self.conf.register_opt(cfg.StrOpt('host', default='host1'))
        gpu_conf.register_opts(self.conf)
        self.conf([], default_config_files=[])
        self.conf.set_override('state_path', self.directory, group='gpu')

    def _collect(self, anonymise=False):
        return document.collect(self.conf, self.seen, anonymise)

    def test_nothing_is_changed(self):
        before = self.state_text()
        self.assertIn(base.MDEV, before)
        self.machine.reset_calls()

        self._collect()

        self.assertEqual(before, self.state_text())
        changing = {name for name in self.machine.calls
                    if symbols.TABLE[name].writes}
        self.assertEqual(set(), changing)
        self.assertGreater(sum(self.machine.calls.values()), 1000)

    def test_what_is_there_is_in_the_record(self):
        found = self._collect()
        by_call = {}
        for record in found['nvml']:
            by_call.setdefault(record['call'], []).append(record)
        self.assertEqual(8, len(by_call['nvmlDeviceGetName']) - 1)
        infos = [record['result']
                 for record in by_call['nvmlGpuInstanceGetInfo']]
        self.assertEqual([9, 19], [info['profileId'] for info in infos])
        self.assertEqual('handle', infos[0]['device'])
        self.assertEqual(
            [{'start': 0, 'size': 4}, {'start': 4, 'size': 4}],
            _record(found, 'nvmlDeviceGetGpuInstancePossiblePlacements',
                    'gpu:0', 9)['result'])
        # 3g.40gb is at 4 and 1g.10gb before it, so no other 3g.40gb fits.
        self.assertEqual(0, _record(
            found, 'nvmlDeviceGetGpuInstanceRemainingCapacity', 'gpu:0',
            9)['result'])
        self.assertEqual(2, _record(
            found, 'nvmlDeviceGetGpuInstanceRemainingCapacity', 'gpu:1',
            9)['result'])
        self.assertEqual(1, len(by_call['nvmlComputeInstanceGetInfo_v2']))
        self.assertEqual([base.MDEV], [
            record['result']
            for record in by_call['nvmlVgpuInstanceGetMdevUUID']])
        self.assertEqual([base.MDEV], list(found['sysfs']['mdevs']))
        self.assertEqual('0000:07:00.0', found['sysfs']['functions'][
            base.VF]['physfn'])
        self.assertIsNone(found['system'])

    def test_errors_have_code_and_symbol(self):
        found = self._collect()
        self.assertEqual(
            {'code': 3, 'symbol': 'NOT_SUPPORTED'},
            _record(found, 'nvmlDeviceGetGpuInstanceProfileInfo', 'gpu:0', 5,
                    1)['error'])
        self.assertEqual(
            {'code': 2, 'symbol': 'INVALID_ARGUMENT'},
            _record(found, 'nvmlDeviceGetGpuInstanceProfileInfo', 'gpu:0',
                    0x17, 1)['error'])
        # pynvml has no structure of that version.
        self.assertEqual(
            {'code': 13, 'symbol': 'FUNCTION_NOT_FOUND'},
            _record(found, 'nvmlDeviceGetGpuInstanceProfileInfo', 'gpu:0', 0,
                    3)['error'])

    def test_the_librarys_own_view_is_beside_it(self):
        views = self._collect()['library']
        self.assertEqual({'gpu list', 'offer list', 'offer list --all',
                          'report show'}, set(views))
        self.assertEqual([None] * 4,
                         [view.get('error') for view in views.values()])
        row = views['gpu list']['rows'][0]
        self.assertEqual(base.A100, row['address'])
        self.assertEqual({'1g.10gb': 1, '3g.40gb': 1}, row['partitions'])
        self.assertGreater(len(views['offer list --all']['rows']),
                           len(views['offer list']['rows']))
        self.assertIn('provider_uuid', views['report show']['rows'][0])

    def test_how_vgpus_share_a_gpu_is_in_the_record(self):
        self.seen = self.open('l40sx4')
        found = self._collect()
        self.assertEqual(1, _record(
            found, 'nvmlDeviceGetVgpuCapabilities', 'gpu:0', 2)['result'])
        self.assertEqual(30_000_000, _record(
            found, 'nvmlDeviceGetVgpuSchedulerCapabilities',
            'gpu:0')['result']['maxTimeslice'])
        self.assertEqual(1, _record(
            found, 'nvmlDeviceGetVgpuSchedulerState',
            'gpu:0')['result']['schedulerPolicy'])
        for version in (1, 2):
            self.assertEqual({'size': 24, 'starts': [0, 24]}, _record(
                found, 'nvmlDeviceGetVgpuTypeSupportedPlacements', 'gpu:0',
                _L40S_24Q, 0, version)['result'])
            self.assertEqual('NOT_SUPPORTED', _record(
                found, 'nvmlDeviceGetVgpuTypeCreatablePlacements', 'gpu:0',
                _L40S_24Q, version)['error']['symbol'])

    def test_without_root_the_refusals_are_recorded(self):
        self.machine.privileged = False
        found = self._collect()
        self.assertEqual('NO_PERMISSION', _record(
            found, 'nvmlDeviceGetGpuInstancePossiblePlacements', 'gpu:0',
            9)['error']['symbol'])
        self.assertEqual('NVIDIA A100-SXM4-80GB', _record(
            found, 'nvmlDeviceGetName', 'gpu:0')['result'])

    def test_without_nvml_sysfs_is_still_recorded(self):
        self.seen.nvml.reset()
        self.machine.unload_library()
        found = self._collect()
        self.assertEqual([{'call': 'nvmlInit', 'args': [], 'error': {
            'code': 12, 'symbol': 'LIBRARY_NOT_FOUND'}}], found['nvml'])
        self.assertIn(base.A100, found['sysfs']['functions'])
        self.assertEqual(8, len(found['library']['gpu list']['rows']))

    def test_a_lost_gpu_does_not_cost_the_others(self):
        self.machine.lose_gpu(base.A100)
        found = self._collect()
        self.assertEqual('GPU_IS_LOST', _record(
            found, 'nvmlDeviceGetHandleByIndex', 0)['error']['symbol'])
        self.assertEqual('NVIDIA A100-SXM4-80GB', _record(
            found, 'nvmlDeviceGetName', 'gpu:1')['result'])

    def test_anonymised_it_names_no_board(self):
        plain = self._collect()
        secrets = {record['result'] for record in plain['nvml']
                   if record['call'] in ('nvmlDeviceGetUUID',
                                         'nvmlDeviceGetSerial')
                   and 'result' in record}
        self.assertEqual(17, len(secrets))
        secrets.add(base.MDEV)
        hidden = self._collect(anonymise=True)
        text = json.dumps(hidden)
        self.assertEqual(set(), {secret for secret in secrets
                                 if secret in text})
        # The same GPU still has the same name in both parts.
        self.assertEqual(
            hidden['library']['gpu list']['rows'][0]['uuid'],
            _record(hidden, 'nvmlDeviceGetUUID', 'gpu:0')['result'])
        self.assertEqual(
            list(hidden['sysfs']['mdevs']),
            [_record(hidden, 'nvmlVgpuInstanceGetMdevUUID')['result']])


class TestRecorder(base.TestCase):

    def test_every_call_allowed_only_asks(self):
        asking = re.compile('nvml[A-Za-z]*(Get|Is)[A-Z]')
        self.assertEqual([], [name for name in calls.READ_ONLY
                              if not asking.match(name)])

    def test_any_other_call_is_refused_before_it_is_made(self):
        seen = self.open('dgx-a100-80')
        recorder = calls.Recorder(seen.nvml)
        device = calls.Named('gpu:0', seen.nvml.call(
            'nvmlDeviceGetHandleByIndex', 0))
        before = self.machine.calls.copy()
        error = self.assertRaises(exception.InvalidValue, recorder.call,
                                  'nvmlDeviceSetMigMode', device, 0)
        self.assertIn('nvmlDeviceSetMigMode', str(error))
        self.assertEqual(before, self.machine.calls)
        self.assertEqual([], recorder.records)

    def test_a_call_that_pynvml_refuses_is_a_finding(self):
        recorder = calls.Recorder(self.open('t4x4').nvml)
        self.assertIsNone(recorder.call('nvmlDeviceGetCount', 1, 2, 3))
        (record,) = recorder.records
        self.assertEqual('TypeError', record['error']['symbol'])
        self.assertIsNone(record['error']['code'])


def _record(document, call, *args):
    """Return the first record of a call, with ``args`` if there are any."""
    for record in document['nvml']:
        if record['call'] == call and (not args
                                       or record['args'] == list(args)):
            return record
    raise AssertionError(f'no record of {call}{args}')
