# SPDX-License-Identifier: Apache-2.0

"""GPUs that servers may have although the machine shows no trace."""


import fixtures
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import capacity
from cyborg_gpu_driver.report import publishing
from cyborg_gpu_driver.tests.unit.report import placements

_GPU = model.PciAddress(0, 7, 0, 0)
_OTHER = model.PciAddress(0, 8, 0, 0)


def _no_placement():
    raise ConnectionError('no Placement here')


def _tree(**servers):
    """Two providers of a GPU and one of another GPU.

    :param servers: project and units of each server, by provider.
    """
    placement = placements.Placement()
    placement.servers = servers
    placement.names = {'small': f'host_gpu_{_GPU}_1g.10gb',
                       'large': f'host_gpu_{_GPU}_3g.40gb',
                       'other': f'host_gpu_{_OTHER}_1g.10gb'}
    placement.tree = dict.fromkeys(placement.names, {})
    return placement.providers()


class MixedTest(base.BaseTestCase):

    def test_projects(self):
        for bound, servers, said in (
                (4, {'small': {'one': ('a', 1), 'two': ('a', 2)},
                     'large': {'three': ('a', 1)},
                     'other': {'four': ('b', 1)}}, ''),
                (2, {'small': {'one': ('b', 1)},
                     'large': {'three': ('a', 1)}}, 'projects a and b'),
                # More are bound than allocated.
                (3, {'small': {'one': ('a', 2)}}, 'not known'),
                (2, {'small': {'one': ('a', 1), 'two': (None, 1)}},
                 'not known')):
            found = capacity.mixed(_tree(**servers), 'host', _GPU, bound)
            self.assertIn(said, found)
            self.assertEqual(bool(said), bool(found))

    def test_placement_is_away(self):
        self.assertIn('no Placement here', capacity.mixed(
            publishing.ProviderTree(_no_placement), 'host1', _GPU, 1))


class ClaimsTest(base.BaseTestCase):

    def test_what_is_not_known_is_a_claim(self):
        found = capacity.of_placement(
            publishing.ProviderTree(_no_placement), 'host1', _GPU)
        self.assertIn('no Placement here', found)

    def test_no_compute_node_of_that_name(self):
        found = capacity.of_placement(_tree(), 'other', _GPU)
        self.assertIn("compute node 'other' is not valid: Placement", found)

    def test_what_was_reported_whole(self):
        path = self.useFixture(fixtures.TempDir()).path
        self.assertEqual('', capacity.of_reports(path, _GPU))
        records = store.Store(path)
        for mode, claimed in (('mig', False), ('vgpu', False),
                              ('passthrough', True), ('auto', True)):
            records.put(_GPU, reported=gpu_record.Reported(
                '20b2', mode, gpu_record.ReportedFacts(), {}))
            self.assertEqual(claimed, bool(capacity.of_reports(path, _GPU)))
            self.assertEqual('', capacity.of_reports(path, _OTHER))
        with open(records.path(_GPU), 'w', encoding='utf-8') as stream:
            stream.write('[]')
        self.assertIn('not known', capacity.of_reports(path, _GPU))
