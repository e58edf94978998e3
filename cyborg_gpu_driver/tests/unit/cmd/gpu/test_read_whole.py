# SPDX-License-Identifier: Apache-2.0

"""What the read-only commands say of whole GPUs."""

import fixtures
import yaml

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.cmd import base

_CONFIGURATION = """
[gpu]
policies = whole
state_path = {0}
[gpu_policy:whole]
mode = passthrough
"""
_USB, _DISK, _FREE = (f'0000:4{number}:00.0' for number in range(1, 4))
_HOST = {
    'driver_version': '580.95.05',
    'gpus': [
        {'model': 't4', 'driver': 'vfio-pci', 'address': _USB},
        {'model': 't4', 'driver': 'vfio-pci', 'address': _DISK,
         'iommu_group': 77},
        {'model': 't4', 'driver': 'vfio-pci', 'address': _FREE}],
    'functions': [
        {'address': _USB.replace('.0', '.2'), 'vendor': '10de',
         'device': '1ad8', 'class': '0c0330', 'driver': 'xhci_hcd'},
        {'address': '0000:50:00.0', 'vendor': '144d', 'device': 'a808',
         'class': '010802', 'driver': 'nvme', 'iommu_group': 77}]}


class BoundAtBootTest(base.CommandCase):
    """GPUs that the operator bound to vfio-pci."""

    def setUp(self):
        super().setUp()
        place = self.useFixture(fixtures.TempDir()).path
        with open(f'{place}/host.yaml', 'w', encoding='utf-8') as stream:
            yaml.safe_dump(_HOST, stream)
        self.options = (
            '--config-file',
            self.configure(_CONFIGURATION.format(place), place),
            '--simulate', f'{place}/host.yaml')

    def test_what_no_guest_can_have_is_not_reported(self):
        rows = {row['address']: row
                for row in self.rows(*self.options, 'offer', 'list')}
        self.assertEqual(
            {_USB: 'no', _DISK: 'no', _FREE: 'yes'},
            {address: row['reported'] for address, row in rows.items()})
        self.assertIn('xhci_hcd', rows[_USB]['problem'])
        self.assertIn('nvme', rows[_DISK]['problem'])


class WithoutLibraryTest(base.HostCase):
    """A machine or container without NVML's library (libnvidia-ml)."""

    host = 't4x4'
    gpus = 0
    config = '[gpu]\npolicies = w\n[gpu_policy:w]\nmode = passthrough\n'

    def test_the_list_says_what_the_agent_does(self):
        gpu = self.rows_on_host('gpu', 'list')[0]['address']
        self.machine().bind_driver(gpu, 'vfio-pci')
        was, = (row for row in self.rows_on_host('offer', 'list')
                if row['address'] == gpu)
        self.assertEqual('yes', was['reported'])
        address = model.PciAddress.parse(gpu)
        store.of(self.state_path).put(address, reported=gpu_record.Reported(
            device_id='1eb8', mode='passthrough',
            facts=gpu_record.ReportedFacts(), providers={
                was['provider_uuid']: offer.Offer(
                    address, '', policy.Mode.PASSTHROUGH, offer.PASSTHROUGH,
                    1)}))
        self.machine().bind_driver(gpu, 'nvidia')
        self.machine().unload_library()
        found = {row['address']: row['reported']
                 for row in self.rows_on_host('offer', 'list')}
        self.assertEqual('yes', found.pop(gpu))
        # Cyborg gets no new provider of a GPU that is not free.
        self.assertEqual({'no'}, set(found.values()))
