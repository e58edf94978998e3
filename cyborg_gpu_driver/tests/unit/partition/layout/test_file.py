# SPDX-License-Identifier: Apache-2.0


import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.tests.unit.partition import boards

TEXT = '''
version: v1
mig-configs:
  everything-off:
    - devices: all
      mig-enabled: false
  everything-empty:
    - devices: all
      mig-enabled: true
      mig-devices: {}
  tenths:
    # A name that is a different profile on each board.
    - device-filter: ["0x20B210DE", "0x233010de"]
      devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
    - device-filter: "0x20B010DE"
      devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 4, "2g.10gb": 0}
  by-hand:
    - devices: [0, 2]
      mig-enabled: false
    - devices: [1]
      mig-enabled: true
      mig-devices:
        "1c.3g.20gb": 2
        1g.5gb+me: 1
        "2g.10gb": 1
'''


def one(item):
    """A layout file with one entry that has one item."""
    return f'version: v1\nmig-configs: {{mine: [{item}]}}'


class LayoutFileTestCase(base.BaseTestCase):

    def parse(self, text):
        return layout_file.LayoutFile.parse(text, 'some.yaml')

    def refused(self, text):
        error = self.assertRaises(
            exception.DocumentError, lambda: [*map(
                (file := self.parse(text)).entry, file.names)])
        self.assertIn('some.yaml', str(error))
        return str(error)

    def test_an_empty_filter_is_none(self):
        entry = self.parse(one('{device-filter: [], devices: all, '
                               'mig-enabled: false}')).entry()
        self.assertEqual((), entry.sections[0].devices.boards)

    def test_a_file_is_read(self):
        found = self.parse(TEXT)
        self.assertEqual(('everything-off', 'everything-empty', 'tenths',
                          'by-hand'), found.names)
        off, = found.entry('everything-off').sections
        self.assertEqual((False, {}), (off.mig_enabled, off.mig_devices))
        first, second = found.entry('tenths').sections
        self.assertEqual(('0x20B210DE', '0x233010de'), first.devices.boards)
        self.assertEqual(('0x20B010DE',), second.devices.boards)
        self.assertEqual({'1g.10gb': 4, '2g.10gb': 0}, second.mig_devices)
        self.assertEqual(
            (0, 2), found.entry('by-hand').sections[0].devices.indices)

    @hypothesis.given(st.dictionaries(
        st.text('abc-.1', min_size=1), st.tuples(
            st.none() | st.lists(st.integers(0, 9), unique=True),
            st.lists(st.sampled_from(['0x20B210DE', '0x233010DE']),
                     unique=True),
            st.booleans(),
            st.dictionaries(
                st.sampled_from(['1g.5gb', '1g.5gb+me', '2g.48gb-me',
                                 '1g.24gb+me.all', '1c.3g.20gb']),
                st.integers(1, 9))),
        min_size=1))
    def test_any_file_reads_as_it_was_written(self, content):
        written = layout_file.LayoutFile(tuple(
            layout_file.Entry('some.yaml', name, (layout_file.Section(
                layout_file.Devices(
                    None if indices is None else tuple(indices),
                    tuple(filters)),
                enabled, counts if enabled else {}),))
            for name, (indices, filters, enabled, counts)
            in content.items()), 'some.yaml')
        self.assertEqual(written, self.parse(written.dump()))

    def test_an_entry_is_chosen(self):
        error = self.assertRaises(
            exception.DocumentError, self.parse(TEXT).entry, 'tenth')
        self.assertIn("no entry 'tenth'", str(error))
        self.assertIn('everything-off, everything-empty, tenths, by-hand',
                      str(error))
        error = self.assertRaises(
            exception.DocumentError, self.parse(TEXT).entry)
        self.assertIn('choose one', str(error))
        only = self.parse(one('{devices: all, mig-enabled: false}'))
        self.assertEqual('mine', only.entry().name)

    def test_a_bad_file_is_refused(self):
        for text, words in (
                ('', 'top level: found nothing; expected a mapping with '
                     'keys version, mig-configs'),
                ('[]', 'top level: found an empty list'),
                ('version: v1', "key 'mig-configs' is missing"),
                ('version: v2\nother: {}',
                 "version: found 'v2'; expected v1"),
                ('version: v1\nmig-configs: {}',
                 'mig-configs: found an empty mapping; expected at least one '
                 'entry, NAME: [...]'),
                ('version: v1\nmig-config: {}',
                 "unknown key 'mig-config'"),
                ('version: v1\nversion: v1\nmig-configs: {}',
                 "key 'version' appears twice"),
                ('version: v1\nmig-configs: {1: []}', 'key 1 is not text'),
                ('a: [', 'not YAML'),
                ('!!python/object:os.system {}', 'not YAML')):
            self.assertIn(words, self.refused(text), text)

    def test_a_bad_entry_fails_alone(self):
        for bad in ('1', '[]', '[{}]', '[{devices: all, mig-enabled: 7}]',
                    '[{devices: all, mig-enabled: true}]',
                    '[{devices: all, mig-enabled: true, mig-devices: {x: 1}}]',
                    '[{devices: all, mig-enabled: false, new-key: 1}]'):
            text = TEXT + f'  bad: {bad}\n'
            file = self.parse(text)
            self.assertEqual(self.parse(TEXT).entry('tenths'),
                             file.entry('tenths'))
            self.assertEqual('bad', file.names[-1])
            for name in ('bad', None):
                error = self.assertRaises(exception.DocumentError, file.entry,
                                          name)
                self.assertIn('bad', str(error))
        self.refused(f'version: v1\nmig-configs: {{bad: {bad}}}')

    def test_a_bad_item_is_refused(self):
        on = 'devices: all, mig-enabled: true, mig-devices: '
        for item, words in (
                ('{devices: all, mig-enabled: true}',
                 ": key 'mig-devices' is missing; give {} for a GPU"),
                ('{devices: all, mig-enabled: false, '
                 'mig-devices: {"1g.5gb": 1}}',
                 ': mig-devices without MIG mode; set mig-enabled: true'),
                ('{devices: all, device-filter: ["0x20B010DE", '
                 '"0x20b010de"], mig-enabled: false}',
                 '.device-filter: a board appears twice; keep one'),
                (f'{{{on}{{1g.5gb: 0}}}}', '.mig-devices: all counts are 0; '
                 'give {} for none at all'),
                (f'{{{on}{{1g.5gb.me: 1}}}}', ".mig-devices: found key "
                 "'1g.5gb.me'; expected SLICESg.MEMORYgb such as 1g.10gb")):
            self.assertIn(f'some.yaml: mig-configs.mine[0]{words}',
                          self.refused(one(item)), item)
        self.assertIn("key '1g.5gb' appears twice", self.refused(
            one(f'{{{on}{{1g.5gb: 1, 1g.5gb: 2}}}}')))


class ForGpuTestCase(base.BaseTestCase):

    def entry(self, name=None, text=TEXT):
        return layout_file.LayoutFile.parse(text, 'some.yaml').entry(name)

    def test_a_name_means_what_it_means_on_that_board(self):
        entry = self.entry('tenths')
        small = boards.gpu(boards.A100_40, device_id='20b0')
        large = boards.gpu(boards.A100_80, device_id='20b2')
        hopper = boards.gpu(boards.H100_80, device_id='2330')
        self.assertEqual(
            [(15, 4), (19, 7), (19, 7)],
            [(devices.profile.profile_id, devices.count)
             for gpu in (small, large, hopper)
             for devices in entry.for_gpu(0, gpu).devices])
        self.assertIsNone(entry.for_gpu(0, boards.gpu(
            boards.A30, device_id='20b7')))

    def test_a_host_gets_what_is_said_of_each_gpu(self):
        gpus = [boards.gpu(boards.A100_40) for _number in range(4)]
        wanted = self.entry('by-hand').for_host(gpus)
        self.assertEqual([0, 1, 2], sorted(wanted))
        self.assertFalse(wanted[0].enabled)
        self.assertEqual(
            {'1c.3g.20gb': 2, '2g.10gb': 1, '1g.5gb+me': 1},
            wanted[1].counts)

    def test_a_gpu_that_is_not_there_is_an_error(self):
        error = self.assertRaises(
            exception.DocumentError, self.entry('by-hand').for_host,
            [boards.gpu(boards.A100_40)])
        self.assertIn('there is no GPU 1, 2', str(error))
        self.assertIn('entry by-hand', str(error))
        self.assertIn('has 0 to 0', str(error))
        error = self.assertRaises(
            exception.DocumentError, self.entry('by-hand').for_host, [])
        self.assertIn('this host has no GPU', str(error))

    def test_a_sum_that_the_gpu_cannot_hold(self):
        gpu = boards.gpu(boards.A100_40, model='NVIDIA A100')
        for counts, fitting in (
                ('{1g.5gb: 8}', '7 x 1g.5gb'),
                ('{1g.5gb: 1000000}', '7 x 1g.5gb'),
                ('{3g.20gb: 2, 1g.5gb: 1}', '2 x 3g.20gb'),
                ('{4g.20gb: 2}', '4g.20gb'),
                ('{1g.5gb+me: 2}', '1g.5gb+me'),
                ('{1c.3g.20gb: 7}', '6 x 1c.3g.20gb')):
            entry = self.entry(text=one(
                f'{{devices: all, mig-enabled: true, mig-devices: '
                f'{counts}}}'))
            error = self.assertRaises(
                exception.DocumentError, entry.for_gpu, 0, gpu)
            self.assertIn('do not fit on one NVIDIA A100', str(error))
            self.assertIn(f'at most {fitting} fit', str(error))

    def test_a_gpu_without_mig(self):
        gpu = boards.gpu((), mig=None, model='Tesla T4')
        self.assertFalse(
            self.entry('everything-off').for_gpu(0, gpu).enabled)
        wanted = self.entry('everything-empty').for_gpu(0, gpu)
        self.assertEqual((False, True), (wanted.enabled, wanted.without_mig))
        self.assertEqual('not changed, it does not support MIG', str(wanted))
        error = self.assertRaises(
            exception.DocumentError, self.entry(text=one(
                '{devices: [0], mig-enabled: true, mig-devices: {}}')
            ).for_gpu, 0, gpu)
        self.assertIn('Tesla T4 does not support MIG', str(error))
        hidden = boards.gpu((), mig=None, driver='vfio-pci',
                            visible_to_nvml=False)
        error = self.assertRaises(
            exception.DocumentError,
            self.entry('everything-empty').for_gpu, 0, hidden)
        self.assertIn('bound to vfio-pci', str(error))

    def test_a_host_of_boards_without_mig(self):
        gpu = boards.gpu((), mig=None, model='Tesla T4')
        entry = self.entry('everything-empty')
        error = self.assertRaises(
            exception.DocumentError, entry.for_host, [gpu, gpu])
        self.assertIn('none of the selected GPUs supports MIG', str(error))
        found = entry.for_host([gpu, boards.gpu(boards.A100_80)])
        self.assertEqual([True, False],
                         [wanted.without_mig for wanted in found.values()])

    def test_a_gpu_chosen_by_index_and_by_board(self):
        entry = self.entry(text=one(
            '{devices: [0], mig-enabled: false}, {devices: all, '
            'device-filter: "0x20B210DE", mig-enabled: false}'))
        other = boards.gpu(boards.A30, device_id='20b7')
        self.assertIsNotNone(entry.for_gpu(0, other))
        self.assertIsNone(entry.for_gpu(1, other))
        self.assertIsNotNone(entry.for_gpu(1, boards.gpu(boards.A100_80)))
        error = self.assertRaises(
            exception.DocumentError, entry.for_gpu, 0,
            boards.gpu(boards.A100_80))
        self.assertIn('matched twice', str(error))
        self.assertIn('devices [0] and devices all of 0x20B210DE',
                      str(error))
