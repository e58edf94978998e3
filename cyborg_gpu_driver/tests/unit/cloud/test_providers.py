# SPDX-License-Identifier: Apache-2.0

"""Reading providers from Placement, and answers that are malformed."""

import copy
from urllib import parse

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.tests.unit.cloud import samples
from cyborg_gpu_driver.tests.unit.cloud import services

_NAME = 'compute1_gpu_0000:07:00.0_1g.10gb'
_CLASS = 'CUSTOM_NVIDIA_1G_10GB'
_TRAITS = ['OWNER_CYBORG', samples.MODEL]
_WANTED = facts.Node(
    'a', _NAME, {_CLASS: facts.Inventory(7, 2, 1, max_unit=7)},
    frozenset(_TRAITS), root='root')
_LIST = '/resource_providers'
_ONE = f'{_LIST}/a'
_ITEM = {'uuid': 'a', 'name': _NAME, 'root_provider_uuid': 'root'}
_ANSWERS = {
    '/': services.PLACEMENT,
    _LIST: {'resource_providers': [
        _ITEM, {'uuid': 'b', 'name': 'compute1_FPGA',
                'root_provider_uuid': 'root'}]},
    _ONE: _ITEM,
    f'{_ONE}/inventories': {'inventories': {_CLASS: {
        'total': 7, 'reserved': 2, 'min_unit': 1, 'max_unit': 7,
        'step_size': 1, 'allocation_ratio': 1.0}}},
    f'{_ONE}/allocations': {'allocations': {
        'server': {'resources': {_CLASS: 1}}}},
    f'{_ONE}/traits': {'traits': _TRAITS}}


class ReadTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.answers = copy.deepcopy(_ANSWERS)
        self.cloud = self.useFixture(services.Services(
            {'placement': services.documents(self.answers)})).cloud

    def test_a_provider(self):
        seen = []
        self.assertEqual((_WANTED,), placement.read_providers(
            self.cloud, progress=lambda *of: seen.append(of)))
        self.assertEqual([(1, 1)], seen)
        self.assertEqual((), placement.read_providers(self.cloud, 'compute2'))

    def test_profiles_of_some_providers(self):
        self.answers[f'{_LIST}/b'] = {
            'uuid': 'b', 'name': 'compute1_FPGA',
            'root_provider_uuid': 'root'}
        self.assertEqual({'a': _WANTED}, placement.gpu_profiles(
            self.cloud, {'a', 'b', 'c'}))
        del self.answers[f'{_ONE}/traits']
        self.assertEqual({}, placement.gpu_profiles(self.cloud, {'a'}))
        self.summarize()
        found = placement.gpu_profiles(self.cloud, {'a'})
        self.assertEqual(
            [('0000:07:00.0', '1g.10gb', 'A100_SXM4_80GB')],
            [(one.gpu, one.label, one.fact('MODEL'))
             for one in found.values()])

    def summarize(self, **summary):
        """Let Cyborg and Placement answer for all providers at once.

        :param summary: items in which the provider's summary differs.
        """
        asked = []

        def candidates(query):
            asked.append(query)
            return {'allocation_requests': [], 'provider_summaries': {
                'a': {'traits': _TRAITS, 'resources': {
                    _CLASS: {'capacity': 5, 'used': 1}},
                    **summary}}}

        self.answers['/allocation_candidates'] = candidates
        self.cloud = self.useFixture(services.Services({
            'placement': services.documents(self.answers),
            'accelerator': services.documents({
                '/v2/deployables': {'deployables': [
                    {'rp_uuid': 'a', 'num_accelerators': 7}]},
                '/deployables': {'deployables': [
                    {'rp_uuid': 'a', 'num_accelerators': 7}]}})})).cloud
        return asked

    def test_one_compute_node_does_not_cost_the_whole_cloud(self):
        (wanted,) = placement.read_providers(self.cloud)
        self.summarize()
        self.cloud = self.useFixture(services.Services(
            {'placement': services.documents(self.answers)})).cloud
        for part in ('allocations', 'traits'):
            del self.answers[f'{_ONE}/{part}']
        asked = []

        def listed(query):
            asked.append(parse.parse_qs(query))
            return _ANSWERS[_LIST] if 'required' in asked[-1] else {
                'resource_providers': [{
                    'uuid': 'root', 'name': 'compute1',
                    'root_provider_uuid': 'root'}]}

        self.answers[_LIST] = listed
        self.assertEqual((wanted,), placement.read_providers(
            self.cloud, 'compute1', gpus=['0000:07:00.0']))
        self.assertEqual([{'name': ['compute1']}, {
            'required': ['OWNER_CYBORG'], 'in_tree': ['root']}], asked)
        self.assertEqual((), placement.read_providers(
            self.cloud, 'compute1', gpus=['0000:08:00.0']))

    def test_what_a_summary_does_not_say_is_asked(self):
        (wanted,) = placement.read_providers(self.cloud)
        self.summarize(resources={_CLASS: {'capacity': 8, 'used': 1}})
        self.assertEqual((wanted,), placement.read_providers(self.cloud))
        for summary in ({'resources': {'A': {'used': 1}}}, {'traits': None}):
            self.summarize(**summary)
            self.refusal()

    def test_one_that_goes_meanwhile(self):
        del self.answers[f'{_ONE}/traits']
        self.assertEqual((), placement.read_providers(self.cloud))

    def test_another_shape(self):
        inventories = f'{_ONE}/inventories'
        for path, document in (
                (_LIST, ['a']), (_LIST, {'providers': []}),
                (_LIST, {'resource_providers': 5}),
                (_LIST, {'resource_providers': [{'uuid': 'a'}]}),
                (inventories, {'inventory': {}}),
                (inventories, {'inventories': [5]}),
                (inventories, {'inventories': {'X': {'total': 7}}}),
                (f'{_ONE}/allocations', {'allocations': None}),
                (f'{_ONE}/traits', {})):
            self.answers[path] = document
            self.assertIn('cannot be parsed', self.refusal(), document)
            self.answers[path] = _ANSWERS[path]
        self.answers[_LIST] = {'resource_providers': [{'name': 5}]}
        self.assertRaises(KeyError, placement.gpu_profiles,
                          self.cloud, {'a'})

    def refusal(self):
        """The error of a command that reads the providers."""
        def read():
            with self.cloud.errors():
                placement.read_providers(self.cloud)

        return str(self.assertRaises(exception.CloudError, read))
