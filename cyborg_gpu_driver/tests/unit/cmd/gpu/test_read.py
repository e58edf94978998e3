# SPDX-License-Identifier: Apache-2.0

"""The read-only commands: gpu list, gpu show, gpu map and offer list."""

from __future__ import annotations

import os

import fixtures
import yaml

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.library import library
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd import base


class GpuListTest(base.CommandCase):

    def test_eight_gpus(self):
        called, call = [], library.Library.call
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.simulator.library.library.Library.call',
            lambda *arguments: called.append(arguments[1])
            or call(*arguments)))
        rows = self.rows('--simulate', 'dgx-a100-80', 'gpu', 'list')
        # It does not read what it does not show.
        self.assertNotIn('NvLink', ' '.join(called))
        self.assertEqual(8, len(rows))
        self.assertEqual(
            ['index', 'address', 'uuid', 'model', 'mode', 'roles',
             'numa_node', 'memory_mib', 'driver', 'vgpu_framework',
             'partitions', 'health', 'cordons'],
            list(rows[0]))
        self.assertEqual([*range(8)], [row['index'] for row in rows])
        first = dict(rows[0], uuid=None)
        self.assertEqual(
            {'index': 0, 'address': '0000:07:00.0', 'uuid': None,
             'model': 'NVIDIA A100-SXM4-80GB', 'mode': 'mig',
             'roles': [], 'numa_node': 3,
             'memory_mib': 81920, 'driver': 'nvidia',
             'vgpu_framework': 'mdev-vf', 'partitions': {}, 'health': 'ok',
             'cordons': []},
            first)
        self.assertEqual(8, len({row['uuid'] for row in rows}))

    def test_a_gpu_that_nvml_cannot_see_is_there(self):
        rows = self.rows('--simulate', 'mixed', 'gpu', 'list')
        self.assertEqual(
            [('0000:c1:00.0', 'NVIDIA A40', 'vfio-pci',
              'bound to vfio-pci')],
            [(row['address'], row['model'], row['driver'], row['health'])
             for row in rows if row['uuid'] is None])

class OfferListTest(base.CommandCase):

    def test_a_host_with_mig(self):
        rows = self.rows('--simulate', self.part('a30x4'), 'offer', 'list')
        self.assertEqual(
            ['address', 'profile', 'resource_class', 'total', 'in_use',
             'creatable', 'reserved', 'reported', 'problem', 'traits',
             'gpus', 'provider_name', 'provider_uuid', 'driver_name',
             'attributes', 'attach_handles', 'device'], list(rows[0]))
        by_gpu = {}
        for row in rows:
            self.assertEqual(
                (0, row['total'] if row['reported'] == 'yes' else 0),
                (row['in_use'], row['creatable']))
            by_gpu.setdefault(row['address'], {})[
                row['profile']] = row['total']
        self.assertEqual(
            [{'1g.6gb': 4, '1g.6gb+me': 1, '2g.12gb': 2, '2g.12gb+me': 1,
              '4g.24gb': 1}] * 2, [*by_gpu.values()])

    def test_what_is_in_the_way_is_said_once(self):
        _, errors = self.run_program('--simulate', 'l40sx4', 'offer', 'list')
        self.assertIn('0000:16:00.0, 0000:38:00.0, ', errors)
        self.assertEqual(1, errors.count('not reported (passthrough): '
                                         'partitioned'))


class GpuShowTest(base.CommandCase):

    def test_facts_of_one_gpu(self):
        shown = self.rows('--simulate', 'dgx-a100-40', 'gpu', 'show',
                          '0000:07:00.0')
        self.assertEqual('enabled', shown['mig_mode'])
        self.assertEqual(7, len(shown['mig_profiles']))
        self.assertEqual(7, len(shown['nvlink_peers']))

    def test_a_bad_and_an_unknown_address(self):
        _, errors = self.run_program('--simulate', 'mixed', 'gpu', 'show',
                                     'x', code=1)
        self.assertIn('expected an index', errors)
        _, errors = self.run_program('--simulate', 'mixed', 'gpu', 'show',
                                     '0000:fe:00.0', code=1)
        self.assertIn('there is no GPU 0000:fe:00.0', errors)


class OfferReportTest(base.HostCase):
    """What the agent would report of the offers."""

    host = 'mixed'
    gpus = 0

    def test_all_that_is_sent(self):
        row = self.rows_on_host('offer', 'list')[-1]
        self.assertEqual(('yes', 1), (row['reported'], row['total']))
        self.assertEqual('PGPU', row['attributes']['rc'])
        self.assertEqual('10de', row['device']['vendor'])
        (handle,) = row['attach_handles']
        self.assertEqual('PCI', handle['attach_type'])
        output, _ = self.run_on_host('offer', 'list', '--long')
        for text in ('resource_class', 'reserved', 'traits', 'provider_name',
                     'provider_uuid', 'PGPU', 'OWNER_CYBORG',
                     row['provider_name'], row['provider_uuid']):
            self.assertIn(text, output)

    def test_a_busy_gpu(self):
        self.machine().add_process('0000:81:00.0', 4711)
        _, errors = self.run_on_host('offer', 'list')
        self.assertIn('0000:81:00.0: not reported (passthrough): 1 '
                      'process(es) of this machine use it', errors)
        row, = [row for row in self.rows_on_host('offer', 'list')
                if row['address'] == '0000:81:00.0']
        self.assertEqual(('no', 0, None, []), (
            row['reported'], row['creatable'], row['provider_uuid'],
            row['attach_handles']))

    def test_fixed_vgpus_are_as_they_should_be(self):
        self.host = 'l40sx4'
        self.configure('[gpu]\npolicies = f\n[gpu_policy:f]\nmode = vgpu\n'
                       'fixed_vgpus = L40S-12Q:2\n', self.directory)
        self.run_on_host('gpu', 'prepare', '--all')
        _, errors = self.run_on_host('offer', 'list')
        self.assertNotIn('not reported', errors)
        row = self.rows_on_host('offer', 'list')[0]
        self.assertEqual(('L40S-12Q', 2, 0, 'Nova'), (
            row['profile'], row['total'], row['in_use'], row['reported']))
        self.machine().start_guest('0000:16:00.4')
        row = self.rows_on_host('offer', 'list')[0]
        self.assertEqual((1, 1), (row['in_use'], row['creatable']))

    def test_policies_of_a_file(self):
        self.host = 't4x4'
        self.configure(
            '[DEFAULT]\nhost = compute7\n[gpu]\npolicies = t4\n'
            '[gpu_policy:t4]\nmode = vgpu\nvgpu_types = T4-2Q\n'
            'match_address = 0000:5e:00.0\n', self.directory)
        (row,) = self.rows_on_host('offer', 'list')
        self.assertEqual('compute7_gpu_0000:5e:00.0_T4-2Q',
                         row['provider_name'])
        self.assertEqual((8, 0), (row['total'], row['reserved']))
        self.assertEqual(['off', 'vgpu', 'off', 'off'], [
            row['mode'] for row in self.rows_on_host('gpu', 'list')])

    def test_what_is_withheld_is_reserved(self):
        rows = [row for row in self.rows_on_host('offer', 'list')
                if row['reported'] == 'yes']
        self.assertEqual({0}, {row['reserved'] for row in rows})
        disabled, *_, whole = (row['address'] for row in rows)
        records = store.of(self.state_path)
        records.put(model.PciAddress.parse(disabled),
                    cordons=(cordon.Cordon(cordon.Source.OPERATOR),))
        records.put(model.PciAddress.parse(whole),
                    tenancy=cleaning.Known(cleaning.State.STUCK, ('server',),
                                           reason='it cannot be reset'))
        for row in self.rows_on_host('offer', 'list'):
            withheld = row['address'] in (disabled, whole)
            self.assertEqual(row['total'] if withheld else 0, row['reserved'])

    def test_looking_writes_nothing(self):
        self.configure(f'[gpu]\nstate_path = {self.directory}/state\n',
                       self.directory)
        for words in (('gpu', 'list'), ('offer', 'list')):
            self.run_program('--config-file', self.conf, '--simulate',
                             'mixed', *words)
        self.assertEqual(['cyborg.conf'], os.listdir(self.directory))


class MistakeTest(base.CommandCase):

    def test_each_is_named(self):
        directory = self.useFixture(fixtures.TempDir()).path
        binary, broken = f'{directory}/binary', f'{directory}/broken'
        for path, content in (binary, b'\x80'), (broken, b'[gpu'):
            with open(path, 'wb') as stream:
                stream.write(content)
        for arguments, words in (
                (('--config-file', directory), '--config-file'),
                (('--config-file', binary), '--config-file'),
                (('--config-file', broken), f"--config-file '{broken}'"),
                (('--log-file', directory), '--log-file'),
                (('--simulate', 'nonsense'), 'dgx-a100-80'),
                (('--simulate', ''), '--simulate'),
                (('--simulate', f'{directory}/none.yaml'), 'none.yaml'),
                (('--state', 'x'), '--simulate'),
                (('--config-file', f'{directory}/none'), f'{directory}/none'),
                (('--config-file', self.configure(
                    '[gpu]\npolicies = a\n', directory)),
                 '[gpu_policy:a] mode')):
            _, errors = self.run_program(*arguments, 'gpu', 'list', code=1)
            self.assertIn(words, errors)
            self.assertNotIn('Traceback', errors)


class NoGpuTest(base.CommandCase):

    def test_empty_and_why(self):
        if os.path.exists('/proc/driver/nvidia/version'):
            self.skipTest('this machine has an NVIDIA driver')
        directory = self.useFixture(fixtures.TempDir()).path
        path = self.configure(f'[gpu]\nsysfs_root = {directory}\n',
                              directory)
        guard = simulator.Machine.load('t4x4')
        guard.install()
        self.addCleanup(guard.uninstall)
        guard.unload_library()
        for words in (('gpu', 'list'), ('offer', 'list')):
            output, errors = self.run_program('--config-file', path,
                                              *words, '-f', 'json')
            self.assertEqual('[]', output.strip())
            self.assertIn('No NVIDIA GPU was found', errors)
            self.assertIn('no NVML library', errors)


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
