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

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests.unit.host import base as simulated


class ProfileNameTest(base.BaseTestCase):

    def test_memory_is_counted_in_started_eighths(self):
        for memory, total, expected in (
                (4864, 40960, 5), (9856, 40960, 10), (19968, 40960, 20),
                (40192, 40960, 40), (9856, 81920, 10), (80384, 81920, 80),
                (5952, 24576, 6), (11968, 24576, 12), (16384, 144384, 18),
                (33280, 144384, 35), (71424, 144384, 71)):
            self.assertEqual(
                expected, model.memory_gb(memory, total),
                f'{memory} of {total} MiB')

    def test_attribute_follows_the_slices(self):
        self.assertEqual('1g.10gb+me', model.computed(
            1, 9856, 81920, model.attribute(7)))
        self.assertEqual('', model.attribute(9))


class ComputedTest(simulated.SimulatedTestCase):
    """Computed names, compared with the names that NVML gives."""

    def test_computed_names_are_those_of_nvml(self):
        for name in ('dgx-a100-40', 'dgx-a100-80', 'a30x4', 'hgx-h100'):
            self.use(name)
            given = self._names()
            self.use(name)
            self.machine.faults.fail('nvmlDeviceGetGpuInstanceProfileInfoV',
                                     13, times=None)
            self.assertEqual(given, self._names(), name)

    def _names(self):
        gpu = self.reader.snapshot().gpus[0]
        self.assertEqual((), gpu.problems)
        return [profile.name for profile in gpu.mig.profiles]
