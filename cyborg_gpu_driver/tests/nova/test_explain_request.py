# SPDX-License-Identifier: Apache-2.0
"""This library sends Placement the query that the released Nova sends."""

import urllib.parse

import hypothesis
from hypothesis import strategies
from nova import context
from nova import objects
from nova import test
from nova.accelerator import cyborg
from nova.scheduler import request_filter
from nova.scheduler import utils

from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.tests import scope

_ACCELERATORS = ('PGPU', 'CUSTOM_NVIDIA_1G_10GB', 'GPU')
"""Classes that Cyborg accepts in a device profile; Nova does not know GPU."""
_CLASSES = (*_ACCELERATORS, 'VCPU')
_TRAITS = ('CUSTOM_GPU_MODEL_A100', 'CUSTOM_GPU_NUMA_0')
_amounts = strategies.sampled_from(('1', '2', '0', '-1', 'x'))
_values = strategies.sampled_from(('required', 'forbidden', 'other'))


def _keys(prefix, names):
    return strategies.sampled_from([f'{prefix}:{name}' for name in names])


_group = strategies.builds(
    lambda resources, traits: {'resources:PGPU': '1', **resources, **traits},
    strategies.dictionaries(_keys('resources', _ACCELERATORS), _amounts,
                            max_size=2),
    strategies.dictionaries(_keys('trait', _TRAITS), _values, max_size=2))
_specs = strategies.builds(
    lambda *parts: {key: value for part in parts
                    for key, value in part.items()},
    strategies.dictionaries(_keys('resources', _CLASSES), _amounts,
                            max_size=1),
    strategies.dictionaries(_keys('resources1', _CLASSES), _amounts,
                            max_size=1),
    strategies.dictionaries(_keys('trait', _TRAITS), _values, max_size=1),
    strategies.dictionaries(_keys('trait1', _TRAITS), _values, max_size=1),
    strategies.fixed_dictionaries({}, optional={
        'group_policy': strategies.sampled_from(('none', 'isolate', 'x')),
        'hw:cpu_policy': strategies.just('dedicated'),
        'hw:emulator_threads_policy': strategies.just('isolate'),
        'hw:maxphysaddr_mode': strategies.sampled_from(
            ('emulate', 'passthrough')),
        'hw:numa_nodes': strategies.just('1')}))


class QuestionTest(test.NoDBTestCase):

    def nova(self, flavor, groups):
        """The parameters of the query that Nova 34 sends."""
        admin = context.get_admin_context()
        spec = objects.RequestSpec(
            flavor=flavor, is_bfv=False, image=objects.ImageMeta(
                properties=objects.ImageMetaProps()))
        spec.requested_resources = cyborg.get_client(
            admin).get_device_request_groups(groups, None)
        request_filter.compute_status_filter(admin, spec)
        request_filter.accelerators_filter(admin, spec)
        asked = utils.resources_from_request_spec(admin, spec, None)
        return dict(urllib.parse.parse_qsl(asked.to_querystring()))

    def flavor(self, specs, swap):
        return objects.Flavor(
            id=1, flavorid='1', name='small', vcpus=2, memory_mb=512,
            root_gb=10, ephemeral_gb=1, swap=swap, rxtx_factor=1.0,
            vcpu_weight=0, disabled=False, is_public=True,
            extra_specs=dict(specs, **{request.PROFILE_KEY: 'gpus'}))

    def ours(self, flavor, groups):
        return request.make(request.Flavor(
            'small', 2, 512, 10 + 1 + -(-flavor.swap // 1024),
            flavor.extra_specs), 'gpus', groups)

    def same(self, specs, groups, swap=0):
        flavor = self.flavor(specs, swap)
        made = self.ours(flavor, groups)
        try:
            asked = self.nova(flavor, groups)
        except ValueError:
            # Nova refuses a group that requests nothing.
            self.assertIn(request.Reason.GROUP_EMPTY,
                          {item.reason for item in made.findings})
        else:
            self.assertEqual(asked, {key: value for key, value
                                     in made.query().items() if value})

    def test_a_plain_one(self):
        self.same({}, [{'resources:PGPU': '1'}])

    def test_several_groups_and_swap(self):
        self.same({}, [{'resources:PGPU': '1',
                        'trait:CUSTOM_GPU_NUMA_0': 'required'},
                       {'resources:CUSTOM_NVIDIA_1G_10GB': '2'}], 1500)

    def test_pinned_processors(self):
        for specs in ({}, {'hw:emulator_threads_policy': 'isolate'}):
            self.same({'hw:cpu_policy': 'dedicated', **specs},
                      [{'resources:PGPU': '1'}])

    def test_any(self):
        @hypothesis.settings(max_examples=scope.examples(300),
                             derandomize=True, database=None)
        @hypothesis.given(_specs, strategies.lists(_group, min_size=1,
                                                   max_size=3))
        def check(specs, groups):
            # Isolated emulator threads need pinned processors. Nova's API
            # checks that earlier.
            if 'hw:cpu_policy' not in specs:
                specs.pop('hw:emulator_threads_policy', None)
            self.same(specs, groups)

        check()
