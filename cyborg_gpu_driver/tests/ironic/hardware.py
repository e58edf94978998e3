# SPDX-License-Identifier: Apache-2.0

"""The hardware of a test server apart from its GPUs, as its ramdisk sees it.

A hardware manager for ironic-python-agent provides this hardware, so that
the agent never inspects the machine on which the tests run.
"""

import os

from ironic_python_agent import hardware

from cyborg_gpu_driver.tests.ironic import programs
from cyborg_gpu_driver.tests.ironic import ramdisk


class ServerManager(hardware.HardwareManager):
    """A server with one network card, one nonexistent disk and no BMC."""

    HARDWARE_MANAGER_NAME = 'server'
    HARDWARE_MANAGER_VERSION = '1'

    def evaluate_hardware_support(self):
        return hardware.HardwareSupport.SERVICE_PROVIDER

    def wait_for_disks(self):
        """Do nothing, because the server has no real disks."""

    def list_network_interfaces(self):
        return [hardware.NetworkInterface(
            'eth0', os.environ[ramdisk.ADDRESS], ipv4_address='192.0.2.7',
            has_carrier=True)]

    def list_block_devices(self, include_partitions=False):
        return [hardware.BlockDevice(programs.DISK, 'A disk', 64 << 30,
                                     False)]

    def get_os_install_device(self, permit_refresh=False):
        return programs.DISK

    def get_cpus(self):
        return hardware.CPU('A processor', '2000', 2, 'x86_64')

    def get_memory(self):
        return hardware.Memory(1 << 30, 1024)

    def get_system_vendor_info(self):
        return hardware.SystemVendorInfo(
            'A server', '1', 'Nobody', hardware.SystemFirmware('', '', ''))

    def get_boot_info(self):
        return hardware.BootInfo('uefi', os.environ[ramdisk.ADDRESS])

    def get_bmc_address(self):
        return None

    def get_bmc_v6address(self):
        return None

    def get_bmc_mac(self):
        return None

    def get_interface_info(self, interface_name):
        return self.list_network_interfaces()[0]

    def erase_block_device(self, node, block_device):
        raise AssertionError('the tests erase nothing')
