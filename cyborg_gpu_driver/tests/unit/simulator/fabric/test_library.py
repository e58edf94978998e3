# SPDX-License-Identifier: Apache-2.0

"""What the simulated libnvfm refuses, called with plain bytes."""

import ctypes
import struct

from oslotest import base

from cyborg_gpu_driver.simulator.machine import machine as machine_module

BADPARAM, UNINITIALIZED, VERSION_MISMATCH, IN_USE, LOST = -1, -4, -6, -7, -9
_LIST_SIZE = 131852
"""sizeof(fmFabricPartitionList_t), as a C compiler gives it."""


class LibraryTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.machine = machine_module.Machine.load('hgx-h100-vfio')
        self.library = self.machine.load_fabric_library('libnvfm.so.1')
        self.handle = ctypes.c_uint64()

    def connect(self, address=b'127.0.0.1:6666', version=2, kind=1,
                size=272):
        data = struct.pack('=I256sIIi', size | version << 24, address, 1000,
                           0, kind)
        return self.library.fmConnect(
            ctypes.create_string_buffer(data, len(data)),
            ctypes.byref(self.handle))

    def ask(self, version=1):
        buffer = ctypes.create_string_buffer(_LIST_SIZE)
        struct.pack_into('=I', buffer, 0, _LIST_SIZE | version << 24)
        return self.library.fmGetSupportedFabricPartitions(
            self.handle.value, buffer), buffer

    def test_the_order_of_calls(self):
        self.assertEqual(UNINITIALIZED, self.connect())
        self.assertEqual(0, self.library.fmLibInit())
        self.assertEqual(IN_USE, self.library.fmLibInit())
        self.handle.value = 7
        self.assertEqual(BADPARAM, self.ask()[0])
        self.assertEqual(0, self.connect())
        code, buffer = self.ask()
        self.assertEqual((0, 15), (code, struct.unpack_from(
            '=I', buffer, 4)[0]))

    def test_versions_of_structures(self):
        self.library.fmLibInit()
        self.assertEqual(VERSION_MISMATCH, self.connect(version=1))
        self.assertEqual(VERSION_MISMATCH, self.connect(size=268))
        self.assertEqual(0, self.connect())
        self.assertEqual(VERSION_MISMATCH, self.ask(version=2)[0])
        self.assertEqual(BADPARAM,
                         self.library.fmGetSupportedFabricPartitions(
                             self.handle.value, None))

    def test_addresses(self):
        self.library.fmLibInit()
        self.assertEqual(0, self.connect(b'127.0.0.1'))
        self.assertEqual(LOST, self.connect(b'127.0.0.1:7000'))
        self.assertEqual(LOST, self.connect(b'/run/fm', kind=2))
        self.assertEqual(BADPARAM, self.connect(b''))
        self.assertEqual(BADPARAM, self.connect(kind=3))

    def test_a_restart_ends_connections(self):
        self.library.fmLibInit()
        self.connect()
        self.machine.start_fabric_manager()
        self.assertEqual(LOST, self.ask()[0])
        self.assertEqual(0, self.connect())
        self.machine.stop_fabric_manager()
        self.assertEqual(LOST, self.ask()[0])
        self.assertEqual(LOST, self.connect())

    def test_a_reboot_ends_partitions(self):
        with self.machine.operation(write=True):
            self.machine.state.fabric.active['7'] = []
        self.machine.reboot()
        self.assertEqual((), self.machine.active_partitions)
        self.library.fmLibInit()
        self.assertEqual(0, self.connect())
