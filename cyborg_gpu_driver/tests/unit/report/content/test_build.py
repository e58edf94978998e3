# SPDX-License-Identifier: Apache-2.0


import collections
import dataclasses
import json
import random
import subprocess
import sys

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.tests.unit.report import samples

HOST = 'compute1'


def report():
    host, offers = samples.host()
    return samples.reported(host, offers, HOST)


def handles(devices):
    return [handle for device in devices
            for deployable in device.deployables
            for handle in deployable.handles]


class TestBuild(base.BaseTestCase):

    def test_whole(self):
        device = report()[2]
        self.assertEqual(samples.WHOLE, device.address)
        self.assertEqual('10de', device.vendor)
        self.assertEqual('NVIDIA GPU 2235', device.model)
        self.assertFalse(device.stub)
        self.assertEqual(
            {'address': '0000:d8:00.0',
             'controller': 'VGA compatible controller',
             'product_id': '2235'}, json.loads(device.std_board_info))
        deployable, = device.deployables
        self.assertEqual('PGPU', deployable.resource_class)
        handle, = deployable.handles
        self.assertEqual('PCI', handle.attach_type)
        self.assertEqual({'domain': '0000', 'bus': 'd8', 'device': '00',
                          'function': '0'}, json.loads(handle.attach_info))

    def test_slices(self):
        device = report()[0]
        self.assertEqual('NVIDIA A100-SXM4-80GB', device.model)
        self.assertEqual(
            {'CUSTOM_NVIDIA_1G_10GB': 7, 'CUSTOM_NVIDIA_1G_10GB_ME': 1,
             'CUSTOM_NVIDIA_2G_20GB': 3, 'CUSTOM_NVIDIA_3G_40GB': 2,
             'CUSTOM_NVIDIA_7G_80GB': 1},
            {deployable.resource_class: deployable.num_accelerators
             for deployable in device.deployables})

    def test_slice_handles_lie_on_virtual_functions(self):
        deployable = report()[0].deployables[0]
        self.assertEqual('1g.10gb', deployable.offer.profile)
        self.assertEqual([samples.vf(n) for n in range(7)],
                         [handle.address for handle in deployable.handles])
        info = json.loads(deployable.handles[2].attach_info)
        self.assertEqual(
            {'domain': '0000', 'bus': '07', 'device': '00', 'function': '6',
             'asked_type': 'nvidia-699'},
            {key: info[key] for key in info if key != 'vgpu_mark'})
        self.assertRegex(info['vgpu_mark'], r'\A1g\.10gb_2_[0-9a-f]{8}\Z')

    def test_vgpus_share_the_gpu_itself(self):
        deployable, = report()[1].deployables
        self.assertEqual(8, deployable.num_accelerators)
        self.assertEqual({samples.T4},
                         {handle.address for handle in deployable.handles})

    def test_attach_info_is_unique_flat_and_within_the_column(self):
        counts = collections.Counter(
            (handle.attach_type, handle.attach_info)
            for handle in handles(report()))
        self.assertEqual(23, len(counts))
        self.assertEqual({1}, set(counts.values()))
        for _, info in counts:
            self.assertLessEqual(len(info), 255)
            parsed = json.loads(info)
            self.assertEqual(sorted(parsed), list(parsed))
            self.assertEqual({str}, {type(item)
                                     for item in parsed.values()})

    def test_longest_attach_info(self):
        address = model.PciAddress(0xffffffff, 0xff, 0x1f, 7)
        offer = samples.t4_offer(
            gpu=address, parents=(address,), profile='x' * 300, total=999,
            vgpu_type_id='nvidia-4294967295')
        device, = samples.reported(
            model.Host(gpus=(samples.t4(address=address),)),
            {address: (offer,)}, 'c' * 300)
        for handle in device.deployables[0].handles:
            self.assertLessEqual(len(handle.attach_info), 255)
        self.assertLessEqual(len(device.deployables[0].name), 200)

    def test_columns(self):
        host, offers = samples.host()
        gpu = samples.t4(model='T' * 400, serial='9' * 100000)
        device, = samples.reported(model.Host(gpus=(gpu,)), offers, HOST)
        self.assertEqual('T' * 255, device.model)
        # vendor_board_info is a TEXT column: 65535 bytes.
        self.assertLess(len(device.vendor_board_info), 65535)
        self.assertLessEqual(len(device.cpid_info), 255)

    def test_attributes_are_one_class_and_keyed_traits(self):
        for device in report():
            for deployable in device.deployables:
                keys = [key for key, _ in deployable.attributes]
                self.assertEqual(len(keys), len(set(keys)))
                self.assertEqual(1, keys.count('rc'))
                self.assertEqual(
                    {f'trait_{trait}': trait
                     for trait in deployable.traits},
                    {key: value for key, value in deployable.attributes
                     if key.startswith('trait')})
                self.assertIn('trait_OWNER_CYBORG', keys)

    def test_same_for_shuffled_input(self):
        host, offers = samples.host()
        expected = report()
        shuffle = random.Random(42).shuffle
        for _ in range(20):
            gpus = list(host.gpus)
            shuffle(gpus)
            shuffled = {}
            for gpu in gpus:
                entries = [
                    dataclasses.replace(offer, parents=tuple(random.Random(
                        7).sample(offer.parents, len(offer.parents))))
                    for offer in offers[gpu.address]]
                shuffle(entries)
                shuffled[gpu.address] = entries
            self.assertEqual(expected, samples.reported(
                model.Host(gpus=tuple(gpus)), shuffled, HOST))

    def test_usage_changes_nothing(self):
        host, offers = samples.host()
        used = {address: [dataclasses.replace(offer, in_use=1, creatable=0)
                          for offer in entries]
                for address, entries in offers.items()}
        mdev = model.Mdev('6a3e6f0c-0000-4000-8000-000000000001',
                          samples.vf(0), 'nvidia-699')
        gpu = host.gpus[0]
        function = dataclasses.replace(gpu.vfs[0], mdevs=(mdev,))
        busy = dataclasses.replace(gpu, vfs=(function, *gpu.vfs[1:]))
        self.assertEqual(report(), samples.reported(
            model.Host(gpus=(busy, *host.gpus[1:])), used, HOST))

    def test_any_change_of_the_functions_changes_every_handle(self):
        host, offers = samples.host()
        first, *others = offers[samples.A100]
        moved = dataclasses.replace(
            first, parents=(*first.parents[:-1], samples.vf(19)))
        before = {handle.attach_info
                  for handle in report()[0].deployables[0].handles}
        after = {handle.attach_info for handle in samples.reported(
            host, offers | {samples.A100: (moved, *others)},
            HOST)[0].deployables[0].handles}
        self.assertEqual(set(), before & after)

    def test_offers_that_cannot_be_reported(self):
        for fields in ({'problem': 'MIG mode is off'}, {'total': 0},
                       {'vgpu_type_id': None}, {'parents': ()}):
            host, offers = samples.host()
            offers[samples.T4] = (samples.t4_offer(**fields),)
            self.assertEqual(
                [samples.A100, samples.WHOLE],
                [device.address
                 for device in samples.reported(host, offers, HOST)], fields)

    def test_problem_of_one_offer_leaves_the_others(self):
        host, offers = samples.host()
        bad = samples.t4_offer(profile='T4-1B', vgpu_type_id='nvidia-230',
                               problem='no such type')
        offers[samples.T4] += (bad,)
        self.assertEqual(report(), samples.reported(host, offers, HOST))

    def test_offer_given_twice_is_reported_once(self):
        host, offers = samples.host()
        offers[samples.T4] *= 2
        self.assertEqual(report(), samples.reported(host, offers, HOST))

class TestStubs(base.BaseTestCase):

    def test_a_stub_is_known_by_the_same_text(self):
        before = report()[2]
        stub = build.stub_device(samples.WHOLE)
        self.assertTrue(stub.stub)
        self.assertEqual((), stub.deployables)
        self.assertEqual(before.cpid_info, stub.cpid_info)
        self.assertEqual('10de', stub.vendor)
        self.assertTrue(stub.model)


class TestBusy(base.BaseTestCase):

    def test_a_busy_gpu_is_reported_and_says_so(self):
        host, offers = samples.host()
        idle = report()[2]
        offers[samples.WHOLE] = [
            dataclasses.replace(offer, creatable=0, busy='2 processes')
            for offer in offers[samples.WHOLE]]
        busy = samples.reported(host, offers, HOST)[2]
        self.assertEqual('2 processes', busy.busy)
        self.assertEqual(idle, dataclasses.replace(busy, busy=''))


class TestImports(base.BaseTestCase):

    def test_without_cyborg(self):
        code = ('import sys; sys.modules["cyborg"] = None; '
                'from cyborg_gpu_driver.report.content import build, names')
        done = subprocess.run([sys.executable, '-c', code],
                              capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stderr)
