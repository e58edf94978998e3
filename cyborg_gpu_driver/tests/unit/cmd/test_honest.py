# SPDX-License-Identifier: Apache-2.0

"""Read-only commands show the true state of a GPU and what is not reported.
"""

import pynvml

from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.unit.cmd import base

_MIG = '0000:41:00.0'
_WHOLE = '0000:81:00.0'
_VFIO = '0000:c1:00.0'


class ReadCase(base.HostCase):

    host = 'mixed'
    gpus = 0

    def setUp(self):
        super().setUp()
        self.faults = self.fail_nvml()

    def of(self, address, *arguments):
        """The rows of one GPU."""
        return [row for row in self.rows_on_host(*arguments)
                if row['address'] == address]

    def assert_nothing(self, address, *words):
        """Check that the commands show a GPU as unusable, with the reason."""
        (row,) = self.of(address, 'gpu', 'list')
        self.assertIsNone(row['mode'])
        self.assertEqual(words[0], row['health'])
        for command in (('offer', 'list'), ('offer', 'list', '--all')):
            (row,) = self.of(address, *command)
            self.assertEqual((None, 0, 0, 'no'), tuple(row[name] for name in (
                'profile', 'total', 'creatable', 'reported')))
            self.assertIsNone(row['provider_name'])
            self.assertTrue(row['device']['stub'])
            for word in ('not changed in Cyborg', *words):
                self.assertIn(word, row['problem'])
        for command in ('gpu', 'offer'):
            _, errors = self.run_on_host(command, 'list')
            self.assertIn(words[0], errors)


class StateTest(ReadCase):

    def test_a_lost_gpu(self):
        for address in (_MIG, _WHOLE):
            self.machine().lose_gpu(address)
            self.assert_nothing(address, 'lost', 'GPU_IS_LOST')

    def test_a_gpu_that_cannot_be_read(self):
        for symbol, code in (
                ('nvmlDeviceGetMigMode', pynvml.NVML_ERROR_UNKNOWN),
                ('nvmlDeviceGetGpuInstances',
                 pynvml.NVML_ERROR_NO_PERMISSION),
                ('nvmlDeviceGetGpuInstanceProfileInfo*',
                 pynvml.NVML_ERROR_NO_PERMISSION),
                ('nvmlDeviceGetHandleByPciBusId_v2',
                 pynvml.NVML_ERROR_GPU_IS_LOST)):
            self.faults[:] = [(symbol, code, _MIG)]
            state = ('lost' if code == pynvml.NVML_ERROR_GPU_IS_LOST
                     else 'unreadable')
            self.assert_nothing(_MIG, state)
            self.assertEqual('yes', self.of(
                _VFIO, 'offer', 'list')[0]['reported'])

    def test_no_nvml(self):
        for code in (pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
                     pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
                     pynvml.NVML_ERROR_NO_PERMISSION):
            self.machine().unload_library(code)
            self.assert_nothing(_MIG, 'not seen by NVML')

    def test_in_mig_mode_nothing_is_passed_through(self):
        machine = self.machine()
        with machine.operation(write=True):
            machine.gpu(_MIG).state.vfs = 0
        (row,) = self.of(_MIG, 'gpu', 'list')
        self.assertEqual((None, 'ok'), (row['mode'], row['health']))
        (row,) = self.of(_MIG, 'offer', 'list')
        self.assertEqual((0, 'no', 'partitioned: MIG mode is on'), (
            row['creatable'], row['reported'], row['problem']))


class ReportTest(ReadCase):

    def test_nova_compute_that_cannot_attach_it(self):
        self.host = host_files.write_host(self.directory, [
            {'model': 'l40s', 'address': '0000:16:00.0',
             'framework': 'vendor-vfio', 'vfs': 16}], unpatched_nova=True)
        self.configure('[gpu]\npolicies = v\n[gpu_policy:v]\nmode = vgpu\n'
                       'vgpu_types = L40S-12Q\n', self.directory)
        rows = self.rows_on_host('offer', 'list')
        self.assertEqual({(4, 0, 'no')}, {
            (row['total'], row['creatable'], row['reported'])
            for row in rows})
        self.assertIn('start nova-compute as cyborg-gpu-nova-compute',
                      rows[0]['problem'])

    def test_a_bad_record_of_reports(self):
        path = self.damage_record('0000:07:00.0')
        _, errors = self.run_on_host('offer', 'list')
        self.assertIn(path, errors)
        with open(path, encoding='utf-8') as stream:
            self.assertEqual('{', stream.read())
