# SPDX-License-Identifier: Apache-2.0

"""NVML's session, devices, events, health and modes, through pynvml."""

import os

import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base

H100 = '0000:81:00.0'


class TestSession(base.MachineTestCase):

    def test_a_session_does_not_survive_a_fork(self):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                pynvml.nvmlDeviceGetCount()
                answer = b'works'
            except pynvml.NVMLError as error:
                answer = str(error.value).encode()
            os.write(writer, answer)
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(str(pynvml.NVML_ERROR_UNINITIALIZED).encode(),
                         os.read(reader, 100))
        os.close(reader)
        os.close(writer)
        self.assertEqual(8, pynvml.nvmlDeviceGetCount())


class TestDevices(base.MachineTestCase):
    host = 'mixed'

    def test_binding_a_driver_hides_and_shows(self):
        device = self.at(H100)
        self.machine.bind_driver(H100, 'vfio-pci')
        self.assertEqual(2, pynvml.nvmlDeviceGetCount())
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlDeviceGetName, device)
        self.machine.bind_driver(H100, 'nvidia')
        self.machine.bind_driver('0000:c1:00.0', 'nvidia')
        self.assertEqual('NVIDIA A40', pynvml.nvmlDeviceGetName(
            self.at('0000:c1:00.0')))

    def test_names_of_nothing(self):
        self.assert_code(pynvml.NVML_ERROR_NOT_FOUND, self.at,
                         '0000:99:00.0')
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, self.at,
                         'first')


A100 = '0000:07:00.0'
OTHER = '0000:0f:00.0'
XID = pynvml.nvmlEventTypeXidCriticalError
DBE = pynvml.nvmlEventTypeDoubleBitEccError


class TestEvents(base.MachineTestCase):

    def setUp(self):
        super().setUp()
        self.machine.sriov_manage(A100, enable=False)
        self.set = pynvml.nvmlEventSetCreate()

    def register(self, address=A100, types=XID | DBE):
        pynvml.nvmlDeviceRegisterEvents(self.at(address), types, self.set)

    def wait(self, milliseconds=0):
        return pynvml.nvmlEventSetWait_v2(self.set, milliseconds)

    def assert_nothing(self):
        self.assert_code(pynvml.NVML_ERROR_TIMEOUT, self.wait)

    def test_nothing_comes_after_a_reset(self):
        self.register()
        self.machine.reset_gpu(A100)
        self.machine.raise_xid(A100, 62)
        self.assert_nothing()
        self.register()
        self.machine.raise_xid(A100, 62)
        self.assertEqual(62, self.wait().eventData)

    def test_a_lost_gpu_tells_of_it_and_spoils_the_set(self):
        self.register()
        self.register(OTHER)
        self.machine.lose_gpu(A100)
        self.assertEqual(79, self.wait().eventData)
        self.assert_code(pynvml.NVML_ERROR_GPU_IS_LOST, self.wait)
        self.machine.raise_xid(OTHER, 62)
        self.assertEqual(62, self.wait().eventData)


RECOVERY = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION


class TestHealth(base.MachineTestCase):

    def setUp(self):
        super().setUp()
        self.machine.sriov_manage(A100, enable=False)

    def uncorrected(self, counter=pynvml.NVML_VOLATILE_ECC):
        return pynvml.nvmlDeviceGetTotalEccErrors(
            self.at(A100), pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            counter)

    def recovery(self):
        return pynvml.nvmlDeviceGetFieldValues(self.at(A100), [RECOVERY])[0]

    def test_a_reset_heals_what_it_can(self):
        self.machine.set_health(A100, uncorrected=2, recovery=1)
        self.machine.set_remapped_rows(A100, 0, 1, pending=True, failed=True)
        self.assertEqual(2, self.uncorrected())
        self.assertEqual(1, self.uncorrected(pynvml.NVML_AGGREGATE_ECC))
        self.assertEqual((0, 1), (self.recovery().nvmlReturn,
                                  self.recovery().value.uiVal))
        self.machine.reset_gpu(A100)
        self.assertEqual(0, self.uncorrected())
        self.assertEqual(1, self.uncorrected(pynvml.NVML_AGGREGATE_ECC))
        self.assertEqual((0, 1, 0, 1), pynvml.nvmlDeviceGetRemappedRows(
            self.at(A100)))
        self.assertEqual(0, self.recovery().value.uiVal)


class EccTest(base.MachineTestCase):

    host = 't4x4'

    def modes(self):
        return pynvml.nvmlDeviceGetEccMode(self.device())

    def test_it_waits_for_a_restart(self):
        self.assertEqual([1, 1], self.modes())
        pynvml.nvmlDeviceSetEccMode(self.device(), 0)
        self.assertEqual([1, 0], self.modes())
        self.machine.reboot()
        pynvml.nvmlInit()
        self.assertEqual([0, 0], self.modes())
        self.assert_code(
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.nvmlDeviceGetTotalEccErrors, self.device(), 1, 0)

    def test_no_confidential_computing_before_hopper(self):
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED,
                         pynvml.nvmlSystemGetConfComputeState)


class PersistenceTest(base.MachineTestCase):
    def mode(self):
        return pynvml.nvmlDeviceGetPersistenceMode(self.device())

    def test_nvml_does_not_reach_the_daemon(self):
        self.machine.start_persistenced()
        pynvml.nvmlDeviceSetPersistenceMode(self.device(), 0)
        self.assertEqual(1, self.mode())
        self.machine.stop_persistenced()
        self.assertEqual(0, self.mode())
