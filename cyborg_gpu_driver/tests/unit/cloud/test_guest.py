# SPDX-License-Identifier: Apache-2.0

"""Guests of whole GPUs: which address space they need to see all of them."""

from oslotest import base

from cyborg_gpu_driver.cloud import guest
from cyborg_gpu_driver.cloud import missing
from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.tests.unit.cloud import samples
from cyborg_gpu_driver.tests.unit.cloud.explain import explain_clouds as clouds

_GIB = 1 << 30
_BAR = 128 * _GIB
"""Of an H100 NVL."""
_WHOLE = samples.provider('passthrough', total=1, traits=(
    'CUSTOM_GPU_KIND_PASSTHROUGH', 'CUSTOM_GPU_MEMORY_94GB'))
_PAIR = samples.provider(
    'nvlink-2', '0000:0f:00.0', resource_class='CUSTOM_NVIDIA_NVLINK_2_H100',
    traits=('CUSTOM_GPU_KIND_NVLINK', 'CUSTOM_GPU_MEMORY_94GB'))
_SLICE = samples.provider(traits=('CUSTOM_GPU_KIND_MIG',
                                  'CUSTOM_GPU_MEMORY_10GB'))
_NODES = (_WHOLE, _PAIR, _SLICE)


def _flavor(*groups, ram=262144, **specs):
    """The flavor and the device profile of a definition."""
    return (resources.DeviceProfile('p', groups), resources.Flavor(
        'f', 8, ram, 1, True, tuple(sorted(
            {'accel:device_profile': 'p', **specs}.items()))))


class GuestTest(base.BaseTestCase):

    def test_the_three_guests_of_rackspace(self):
        self.assertEqual([3, 2, 1], [
            guest.default_room(_BAR, ram * _GIB) for ram in (256, 512, 768)])

    def test_bits(self):
        for gpus, bar, ram, bits in (
                (1, 128, 64, 41), (2, 128, 256, 42), (4, 128, 768, 43),
                (8, 128, 2048, 44), (8, 512, 4096, 46),
                # Seven eighths of 2 TiB are too little for this memory.
                (1, 64, 1790, 42)):
            self.assertEqual(
                {'hw:maxphysaddr_mode': 'emulate',
                 'hw:maxphysaddr_bits': str(bits)},
                guest.flavor_specs(gpus, bar * _GIB, ram * _GIB))
        self.assertEqual({}, guest.flavor_specs(1, 16 * _GIB, 1024 * _GIB))

    def test_whole_gpus_of_a_request(self):
        for group, count, found in (
                ('PGPU', 3, (3, _BAR)), (names.custom(
                    names.VENDOR, 'nvlink-2_H100'), 2, (4, _BAR)),
                ('CUSTOM_NVIDIA_1G_10GB', 7, (0, 0))):
            wanted = request.make(None, 'p', [{f'resources:{group}': '1'}]
                                  * count).granular
            self.assertEqual(found, guest.whole_gpus(wanted, _NODES))

    def test_bars_have_the_size_of_the_memory(self):
        # A T4 has less, because its BAR 1 does not show all of its memory.
        models = [model for model in map(files.load_model, files.model_names())
                  if model.bar1_mib > 256]
        self.assertGreater(len(models), 15)
        for model in models:
            memory = names.whole_memory(model.memory_mib)
            node = samples.provider('passthrough', traits=(
                'CUSTOM_GPU_KIND_PASSTHROUGH', f'CUSTOM_GPU_MEMORY_{memory}'))
            self.assertEqual((1, model.bar1_mib << 20), guest.whole_gpus(
                request.make(None, 'p', [{'resources:PGPU': '1'}]).granular,
                [node]))

    def test_flavors_of_a_definition(self):
        def specs(*items):
            return dict(guest.completed(items, _NODES)[1].extra_specs)

        four = 4 * (resources.group('PGPU'),)
        self.assertEqual('43', specs(*_flavor(*four))['hw:maxphysaddr_bits'])
        for items in (
                _flavor(resources.group('CUSTOM_NVIDIA_1G_10GB')),
                _flavor(*four, **{'hw:maxphysaddr_mode': 'passthrough'})):
            self.assertEqual(dict(items[1].extra_specs), specs(*items))

    def test_explain_names_a_flavor_that_is_too_small(self):
        tree = clouds.tree(_WHOLE)

        def found(**specs):
            wanted = clouds.flavor(4 * [{'resources:PGPU': '1'}], specs,
                                   ram=262144)
            return [item.text for item in missing.of_request(
                wanted, clouds.known(tree))
                if item.reason is request.Reason.GUEST_ADDRESSES]

        self.assertEqual(1, len(found(**{'hw:maxphysaddr_mode': 'emulate',
                                         'hw:maxphysaddr_bits': '42'})))
        self.assertEqual([], found(**{'hw:maxphysaddr_mode': 'passthrough'}))
        self.assertEqual([], found(**{'hw:maxphysaddr_mode': 'emulate',
                                      'hw:maxphysaddr_bits': '43'}))
