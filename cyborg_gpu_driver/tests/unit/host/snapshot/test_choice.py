# SPDX-License-Identifier: Apache-2.0

"""Which GPU a user means, and in which state the GPU is."""

import dataclasses
import errno

import pynvml
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator

_FIRST = '0000:31:00.0'
_SECOND = '0000:4b:00.0'


class ReadCase(base.BaseTestCase):

    host = 'a30x4'

    def setUp(self):
        super().setUp()
        self.machine = simulator.Machine.load(self.host)
        with self.machine.operation(write=True):
            for gpu in self.machine.gpus:
                gpu.state.vfs = 0
        self.reader = reader.HostReader(platform.open_platform(self.machine))
        self.addCleanup(self.machine.uninstall)

    def state(self, address=_FIRST):
        host = self.reader.snapshot()
        return condition.state(host.gpu(model.PciAddress.parse(address)))


class FindTest(ReadCase):

    def found(self, text, host=None):
        return str(choice.find(host or self.reader.snapshot(), text).address)

    def refused(self, text, *words, host=None):
        error = self.assertRaises(
            (exception.InvalidValue, exception.UnknownGpu), choice.find,
            host or self.reader.snapshot(), text)
        for word in words:
            self.assertIn(word, str(error))

    def test_every_way_to_name_it(self):
        uuid = self.machine.gpu(_SECOND).spec.uuid
        for text in ('1', '01', _SECOND, '4b:00.0', '4B:00.0',
                     '00000000:4B:00.0', uuid, uuid.upper(), uuid.lower()):
            self.assertEqual(_SECOND, self.found(text), text)

    def test_what_there_is_not(self):
        self.refused('99', 'there is no GPU 99; this host has 0 to 3')
        self.refused('0000:fe:00.0', 'no GPU 0000:fe:00.0', _FIRST)
        self.refused('fe:00.0', 'no GPU fe:00.0', _FIRST)
        self.refused('GPU-1', 'no GPU GPU-1', _FIRST)
        self.refused('0', 'has no NVIDIA GPU', host=model.Host())

    def test_what_names_no_gpu(self):
        for text in ('', 'x', '-1', '1.5', '٣', '4b:00', 'all', '4b:00.0 '):
            self.refused(text, 'expected an index')
        self.refused('MIG-4f2c6a3b', 'a part of a GPU')
        self.machine.sriov_manage(_SECOND)
        function = self.reader.snapshot().gpus[1].vfs[0].address
        self.refused(str(function), 'virtual function of GPU 1')

    def test_a_uuid_that_cannot_be_read(self):
        uuid = self.machine.gpu(_FIRST).spec.uuid
        self.machine.lose_gpu(_FIRST)
        self.refused(uuid, f'does not return the UUID of GPU 0 ({_FIRST})')

    def test_two_domains(self):
        host = self.reader.snapshot()
        twin = dataclasses.replace(host.gpus[0], address=(
            model.PciAddress.parse(f'0001{_FIRST[4:]}')))
        host = dataclasses.replace(host, gpus=(*host.gpus, twin))
        self.refused(_FIRST[5:], 'several PCI domains', host=host)
        self.assertEqual(str(twin.address),
                         self.found(str(twin.address), host))

    def test_numbers_stay(self):
        self.machine.lose_gpu(_FIRST)
        self.assertEqual(_SECOND, self.found('1'))
        self.machine.bind_driver(_SECOND, 'vfio-pci')
        self.assertEqual(_SECOND, self.found('1'))
        self.machine.unload_library()
        self.assertEqual(_SECOND, self.found('1'))

    def test_no_number_where_a_function_is_unknown(self):
        self.machine.faults.fail_read(f'*/{_FIRST}/vendor', errno.EIO,
                                      times=None)
        host = self.reader.snapshot()
        error = self.assertRaises(exception.HostUnusable, choice.find, host,
                                  '1')
        self.assertIn(f'cannot be numbered: PCI function {_FIRST}',
                      str(error))
        self.assertEqual(_SECOND, self.found(_SECOND, host))

    def test_no_number_where_a_function_may_be_virtual(self):
        self.machine.sriov_manage(_FIRST)
        function = self.reader.snapshot().gpus[0].vfs[0].address
        fresh = reader.HostReader(platform.open_platform(self.machine))
        self.addCleanup(self.machine.uninstall)
        self.machine.faults.fail_read(f'*/{function}/physfn', errno.EIO,
                                      times=None)
        host = fresh.snapshot()
        try:
            choice.gpus(host)
        except exception.HostUnusable as error:
            self.assertIn(f'{function} may be a virtual function',
                          str(error))
        else:
            self.fail('the GPUs were numbered')


class StateTest(ReadCase):

    def test_states(self):
        self.assertEqual(condition.OK, self.state())
        self.machine.lose_gpu(_FIRST)
        self.assertEqual(condition.LOST, self.state())
        self.machine.find_gpu(_FIRST)
        self.machine.bind_driver(_FIRST, 'vfio-pci')
        self.assertEqual('bound to vfio-pci', self.state())
        self.machine.bind_driver(_FIRST, None)
        self.assertEqual('no driver', self.state())
        self.machine.unload_library()
        self.assertEqual(condition.UNSEEN, self.state(_SECOND))

    def test_what_nvml_answers(self):
        for code, wanted in (
                (pynvml.NVML_ERROR_RESET_REQUIRED, condition.NEEDS_RESET),
                (pynvml.NVML_ERROR_TIMEOUT, condition.NO_ANSWER),
                (pynvml.NVML_ERROR_UNKNOWN, condition.UNREADABLE)):
            self.machine.faults.clear()
            self.machine.faults.fail('nvmlDeviceGetMigMode', code,
                                     times=None, address=_FIRST)
            self.assertEqual(wanted, self.state())
            self.assertEqual(condition.OK, self.state(_SECOND))

    def test_mig_that_cannot_be_read(self):
        self.machine.faults.fail(
            'nvmlDeviceGetGpuInstanceProfileInfo*',
            pynvml.NVML_ERROR_UNKNOWN, times=None, address=_FIRST)
        # Otherwise the GPU would get the facts of the equal boards.
        self.machine.faults.fail('nvmlDeviceGetVbiosVersion',
                                 pynvml.NVML_ERROR_NOT_SUPPORTED,
                                 times=None, address=_FIRST)
        self.assertEqual(condition.UNREADABLE, self.state())
        self.machine.faults.clear()
        self.machine.faults.fail('nvmlDeviceGetSerial',
                                 pynvml.NVML_ERROR_UNKNOWN, times=None,
                                 address=_FIRST)
        self.assertEqual(condition.PARTLY, self.state())
        gpu = self.reader.snapshot().gpus[0]
        self.assertEqual('', condition.obstacle(gpu))
