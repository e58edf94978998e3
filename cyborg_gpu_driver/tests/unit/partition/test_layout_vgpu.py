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

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import layout_vgpu
from cyborg_gpu_driver.tests.unit.partition import boards

TEXT = '''
version: v1
vgpu-configs:
  halves:
    - devices: all
      device-filter: "0x25B610DE"
      vgpu-devices: {A16-8Q: 2}
    # Another card with the same id.
    - devices: all
      device-filter: "0x25B610DE"
      vgpu-devices: {A2-8Q: 2}
  many:
    - devices: [0]
      vgpu-devices: {A2-8Q: 1, A2-4Q: 3, 6000D-1-42C: 0}
'''


def gpu():
    return boards.gpu((), mig=None, device_id='25b6', vgpu_types=(
        model.VgpuType(1, 'A2-8Q', 'Quadro', 8192, 2),
        model.VgpuType(2, 'A2-4Q', 'Quadro', 4096, 4)))


class LayoutVgpuTestCase(base.BaseTestCase):

    def parse(self, text=TEXT):
        return layout_vgpu.LayoutFile.parse(text, 'some.yaml')

    def test_what_is_read_is_what_is_written(self):
        found = self.parse()
        self.assertEqual(('halves', 'many'), found.names)
        self.assertEqual({'A2-8Q': 1, 'A2-4Q': 3, '6000D-1-42C': 0},
                         found.entry('many').sections[0].vgpu_devices)
        self.assertEqual(found, self.parse(found.dump()))

    def test_types_tell_cards_of_one_id_apart(self):
        wanted = self.parse().entry('halves').for_gpu(5, gpu())
        self.assertEqual({'A2-8Q': 2}, {
            entry.name: count for entry, count in wanted.items()})

    def test_a_gpu_that_is_not_spoken_of(self):
        entry = self.parse().entry('many')
        self.assertIsNone(entry.for_gpu(1, gpu()))
        self.assertRaises(exception.LayoutError, entry.for_gpu, 0,
                          boards.gpu((), mig=None))

    def test_what_a_gpu_cannot_have(self):
        for types, words in (
                ('{A2-16Q: 1}', ("no type 'A2-16Q'", 'A2-8Q, A2-4Q')),
                ('{A2-8Q: 3}', ('3 of A2-8Q', 'at most 2'))):
            entry = self.parse(
                'version: v1\nvgpu-configs: {mine: [{devices: all, '
                f'vgpu-devices: {types}}}]}}').entry()
            error = self.assertRaises(
                exception.LayoutError, entry.for_gpu, 0, gpu())
            for word in ('entry mine, GPU 0', *words):
                self.assertIn(word, str(error))

    def test_two_items_that_both_suit(self):
        entry = self.parse(
            'version: v1\nvgpu-configs: {mine: ['
            '{devices: all, vgpu-devices: {A2-8Q: 1}}, '
            '{devices: [0], vgpu-devices: {A2-4Q: 1}}]}').entry()
        error = self.assertRaises(
            exception.LayoutError, entry.for_gpu, 0, gpu())
        self.assertIn('spoken of twice', str(error))
        self.assertEqual(1, len(entry.for_gpu(1, gpu())))

    def test_a_bad_file_is_refused(self):
        for item, words in (
                ('{devices: all}', "key 'vgpu-devices' is missing"),
                ('{devices: all, vgpu-devices: {A2: 1}}', "'A2'"),
                ('{devices: all, vgpu-devices: {A2-8Q: x}}', 'not a count'),
                ('{devices: all, vgpu-devices: {A2-8Q: 1}, '
                 'mig-enabled: true}', "unknown key 'mig-enabled'")):
            error = self.assertRaises(
                exception.LayoutError, self.parse,
                f'version: v1\nvgpu-configs: {{mine: [{item}]}}')
            self.assertIn(words, str(error))
