# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""GPUs that servers may have without a trace on the machine."""


import fixtures
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import claims
from cyborg_gpu_driver.report import provider_tree

_GPU = model.PciAddress(0, 7, 0, 0)
_OTHER = model.PciAddress(0, 8, 0, 0)


def _no_placement():
    raise ConnectionError('no Placement here')


class ClaimsTest(base.BaseTestCase):

    def test_what_is_not_known_is_a_claim(self):
        found = claims.of_placement(
            provider_tree.ProviderTree(_no_placement), 'host1', _GPU)
        self.assertIn('no Placement here', found)

    def test_what_was_reported_whole(self):
        path = self.useFixture(fixtures.TempDir()).path
        self.assertEqual('', claims.of_reports(path, _GPU))
        records = store.Store(path)
        for mode, claimed in (('mig', False), ('vgpu', False),
                              ('passthrough', True)):
            records.put(_GPU, reported=gpu_record.Reported(
                '20b2', mode, gpu_record.ReportedFacts(), {}))
            self.assertEqual(claimed, bool(claims.of_reports(path, _GPU)))
            self.assertEqual('', claims.of_reports(path, _OTHER))
        with open(records.path(_GPU), 'w', encoding='utf-8') as stream:
            stream.write('[]')
        self.assertIn('not known', claims.of_reports(path, _GPU))
