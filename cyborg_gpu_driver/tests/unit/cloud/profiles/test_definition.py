# SPDX-License-Identifier: Apache-2.0

"""The file that defines profiles, flavors and limits: valid and invalid ones.
"""

import copy
import dataclasses
import json

import hypothesis
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.tests.unit.cloud import samples
from cyborg_gpu_driver.tests.unit.fuzz import base as fuzz

_DOCUMENT = {
    'version': 'v1',
    'profiles': [
        {'name': 'slice', 'groups': [{'gpu': '1g.10gb'}]},
        {'name': 'mixed', 'description': 'a desktop and two slices',
         'groups': [
             {'gpu': 'T4-2B'},
             {'resources': 'CUSTOM_NVIDIA_1G_10GB', 'count': 2,
              'together': True, 'required': ['CUSTOM_GPU_ARCH_HOPPER'],
              'forbidden': ['CUSTOM_GPU_NUMA_0']}]},
        {'name': 'four', 'groups': [{'gpu': 'passthrough', 'count': 4}]}],
    'flavors': [
        {'name': 'gpu.slice', 'profile': 'slice', 'vcpus': 4, 'ram': 8192,
         'disk': 0, 'description': 'one slice',
         'extra_specs': {'hw:cpu_policy': 'dedicated'},
         'projects': ['research', 'lab']},
        {'name': 'gpu.four', 'profile': 'four', 'vcpus': 64, 'ram': 262144,
         'disk': 100}],
    'limits': [
        {'gpu': '1g.10gb', 'default': 0,
         'projects': {'research': 8, 'lab': -1}},
        {'resources': 'PGPU', 'default': -1}]}


def _parse(document):
    return definition.parse(json.dumps(document), 'gpus.yaml')


class DefinitionTest(base.BaseTestCase):

    def test_what_a_file_asks_for(self):
        slice_ = resources.group('CUSTOM_NVIDIA_1G_10GB')
        limit = 'class:CUSTOM_NVIDIA_1G_10GB'
        self.assertEqual((
            resources.DeviceProfile('slice', (slice_,),
                                    '1 x MIG slice 1g.10gb'),
            resources.DeviceProfile(
                'mixed', (resources.group('CUSTOM_NVIDIA_T4_2B'), (
                    ('resources:CUSTOM_NVIDIA_1G_10GB', '2'),
                    ('trait:CUSTOM_GPU_ARCH_HOPPER', 'required'),
                    ('trait:CUSTOM_GPU_NUMA_0', 'forbidden'))),
                'a desktop and two slices'),
            resources.DeviceProfile('four', 4 * (resources.group('PGPU'),),
                                    '4 x whole GPU'),
            resources.Flavor(
                'gpu.slice', 4, 8192, 0, False,
                ((':category', 'vgpu'), ('accel:device_profile', 'slice'),
                 ('hw:cpu_policy', 'dedicated')),
                frozenset({'research', 'lab'}), 'one slice'),
            resources.Flavor(
                'gpu.four', 64, 262144, 100, True,
                ((':category', 'vgpu'), ('accel:device_profile', 'four')),
                description='4 x whole GPU'),
            resources.RegisteredLimit(limit, 0),
            resources.Limit(limit, 'research', 8),
            resources.Limit(limit, 'lab', -1),
            resources.RegisteredLimit('class:PGPU', -1)),
            _parse(_DOCUMENT).items)

    def test_what_tenants_read(self):
        document = copy.deepcopy(_DOCUMENT)
        del document['profiles'][1]['description']
        document['profiles'][1]['groups'] += [
            {'gpu': 'nvlink-2_H100_NVL'}, {'gpu': '1g.24gb-me'},
            {'gpu': 'passthrough', 'required': [
                'CUSTOM_GPU_MEMORY_80GB', 'CUSTOM_GPU_NUMA_0']}]
        self.assertEqual(
            '1 x vGPU T4-2B + 2 x CUSTOM_NVIDIA_1G_10GB (HOPPER) + '
            '1 x GPU group nvlink-2_H100_NVL + 1 x MIG slice 1g.24gb-me + '
            '1 x whole GPU (80GB)', _parse(document).items[1].description)

    def test_projects(self):
        text = json.dumps(_DOCUMENT)
        found = definition.parse(text, '-', lambda name: name[0])
        self.assertEqual({'r', 'l'}, found.items[3].projects)
        # The file has one project by its name and by its UUID.
        self.assertIn('of project r appears twice', str(self.assertRaises(
            exception.DocumentError, definition.parse, text, '-',
            lambda name: 'r')))

    def refusal(self, place, value):
        """The error for the document with another value at a place."""
        document = {'document': copy.deepcopy(_DOCUMENT)}
        container, key = document, 'document'
        for part in place:
            container, key = container[key], part
        container[key] = value
        return str(self.assertRaises(exception.DocumentError, _parse,
                                     document['document']))

    def test_the_place_of_what_is_not_understood(self):
        group = ('profiles', 1, 'groups', 1)
        flavor = ('flavors', 0)
        for place, value, where in (
                (('version',), 'v2', 'version'),
                (('profiles', 0, 'name'), 'a b', 'profiles[0].name'),
                (('profiles', 2, 'name'), 'slice', 'profiles[2]'),
                ((*group, 'gpu'), '1g.10gb', 'profiles[1].groups[1]'),
                (group, {'count': 1}, 'profiles[1].groups[1]'),
                ((*group, 'resources'), 'MEMORY_MB',
                 'profiles[1].groups[1].resources'),
                ((*group, 'required', 0), 'HW_GPU_X',
                 'profiles[1].groups[1].required[0]'),
                ((*group, 'forbidden', 0), 'CUSTOM_GPU_ARCH_HOPPER',
                 'profiles[1].groups[1].forbidden'),
                ((*group, 'resources'), 'PGPU',
                 'profiles[1].groups[1].together'),
                (('profiles', 0, 'groups', 0, 'gpu'), '1g10gb',
                 'profiles[0].groups[0].gpu'),
                (('profiles', 1, 'description'), 'x [openstack gpu]',
                 'profiles[1].description'),
                ((*flavor, 'name'), ' x', 'flavors[0].name'),
                ((*flavor, 'name'), 'gpu.four', 'flavors[1]'),
                ((*flavor, 'ram'), 1 << 31, 'flavors[0].ram'),
                ((*flavor, 'public'), True, 'flavors[0].projects'),
                ((*flavor, 'extra_specs', 'a/b'), 'x',
                 'flavors[0].extra_specs'),
                ((*flavor, 'extra_specs', 'accel:device_profile'), 'x',
                 'flavors[0].extra_specs'),
                (('limits', 0, 'default'), -2, 'limits[0].default'),
                (('limits', 1, 'resources'), 'CUSTOM_NVIDIA_1G_10GB',
                 'limits[1]')):
            self.assertIn(f'gpus.yaml: {where}: ', self.refusal(place, value))

    def test_classes_of_profiles(self):
        for name, resource_class in (
                ('passthrough', 'PGPU'), ('1g.10gb', 'CUSTOM_NVIDIA_1G_10GB'),
                ('1g.10gb+me', 'CUSTOM_NVIDIA_1G_10GB_ME'),
                ('1g.10gb.me', 'CUSTOM_NVIDIA_1G_10GB_ME'),
                ('1g.24gb-me', 'CUSTOM_NVIDIA_1G_24GB_NOME'),
                ('A100D-1-10C', 'CUSTOM_NVIDIA_A100D_1_10C')):
            self.assertEqual(resource_class, definition.profile_class(name))

    @fuzz.examples(300)
    @hypothesis.given(fuzz.mutated(_DOCUMENT))
    def test_whatever_stands_there(self, document):
        try:
            text = json.dumps(document)
        except ValueError:
            return
        try:
            found = definition.parse(text, 'gpus.yaml')
        except exception.DocumentError:
            return
        self.assertEqual(len(found.items),
                         len({item.key for item in found.items}))


_MIG = 'CUSTOM_GPU_KIND_MIG'
_HOPPER = 'CUSTOM_GPU_MODEL_H100_PCIE'
_FOUND = (
    samples.provider(used=2, reserved=1, traits=(
        _MIG, samples.MODEL, 'CUSTOM_GPU_NUMA_3', 'CUSTOM_NVIDIA_20B2')),
    samples.provider(gpu='0000:0f:00.0', traits=(
        _MIG, samples.MODEL, 'CUSTOM_GPU_NUMA_3')),
    samples.provider(host='compute2', traits=(
        _MIG, _HOPPER, 'CUSTOM_GPU_NUMA_3')),
    samples.provider('2g.20gb', total=3, reserved=1),
    samples.provider('passthrough', '0000:47:00.0', total=1, traits=(
        'CUSTOM_GPU_KIND_PASSTHROUGH', 'CUSTOM_GPU_MEMORY_80GB')),
    samples.provider('1g.10gb.me'), samples.provider('T4-2B'),
    samples.provider('nvlink-2', '0000:65:00.0', total=1,
                     resource_class='CUSTOM_NVIDIA_NVLINK_2_H100_NVL'),
    samples.provider('nvlink-2', '0000:98:00.0', total=1,
                     resource_class='CUSTOM_NVIDIA_NVLINK_2_A100_PCIE_40GB'),
    # One without an inventory offers nothing.
    dataclasses.replace(samples.provider('4g.40gb'), inventories={}))


class EntriesTest(base.BaseTestCase):

    def test_a_definition_file_can_name_each(self):
        found = hosts.catalogue(_FOUND)
        self.assertEqual(
            ['1g.10gb', '1g.10gb.me', '2g.20gb', 'T4-2B',
             'nvlink-2_A100_PCIE_40GB', 'nvlink-2_H100_NVL', 'passthrough'],
            [*found])
        for label, nodes in found.items():
            self.assertEqual({definition.profile_class(label)},
                             {node.resource_class for node in nodes})
