# SPDX-License-Identifier: Apache-2.0

import dataclasses

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import names


class TestProfileName(base.BaseTestCase):

    def test_parts(self):
        for text, parts in (
                ('1g.10gb', (None, 1, 10, frozenset())),
                ('1c.3g.20gb', (1, 3, 20, frozenset())),
                ('1g.5gb+me', (None, 1, 5, frozenset({'+me'}))),
                ('1g.24gb+me.all', (None, 1, 24, frozenset({'+me.all'}))),
                ('4g.96gb+gfx', (None, 4, 96, frozenset({'+gfx'}))),
                ('2g.48gb-me', (None, 2, 48, frozenset({'-me'}))),
                ('7g.141gb', (None, 7, 141, frozenset()))):
            name = names.ProfileName.parse(text)
            self.assertEqual(parts, dataclasses.astuple(name), text)

    @hypothesis.given(st.text(alphabet='0123456789cg.b+-mealfx,', max_size=14))
    def test_what_parses_is_printed_the_same(self, text):
        try:
            name = names.ProfileName.parse(text)
        except exception.InvalidValue:
            return
        self.assertEqual(text, str(name))

    def test_refused(self):
        for text in ('', '1g', '10gb', '0g.10gb', '1g.0gb', '01g.10gb',
                     '1g.010gb', '1g.10GB', ' 1g.10gb', '1g.10gb\n',
                     'MIG 1g.10gb', '1g.10gb+', '1g.10gb-', '1g.10gb+me+gfx',
                     '1g.10gb+me,', '1g.10gb+me,gfx', '1g.10gb+me,me',
                     '1g.10gb+nvl', '1g.10gb-gfx', '4c.3g.20gb',
                     '0c.3g.20gb', '\u0661g.10gb', None):
            error = self.assertRaises(exception.InvalidValue,
                                      names.ProfileName.parse, text)
            self.assertEqual(str(text), error.kwargs['value'])

    def test_one_that_fills_its_gpu_instance_has_the_name_of_that(self):
        for text in ('1c.1g.5gb', '3c.3g.20gb', '7c.7g.40gb'):
            self.assertEqual(text[3:], str(names.ProfileName.parse(text)))

    def test_never_more_and_less(self):
        error = self.assertRaises(
            exception.InvalidValue, names.ProfileName, None, 1, 10,
            frozenset({'+gfx', '-me'}))
        self.assertIn('not both', str(error))


class TestVgpuTypeName(base.BaseTestCase):

    def test_parts(self):
        for text, parts in (
                ('A100-1-5C', ('A100', 1, 5, 'C', '')),
                ('A100-40C', ('A100', None, 40, 'C', '')),
                ('A100-1-5CME', ('A100', 1, 5, 'C', 'ME')),
                ('6000D-1-42C', ('6000D', 1, 42, 'C', '')),
                ('DC-1-24Q', ('DC', 1, 24, 'Q', '')),
                ('DC-1-24QNOME', ('DC', 1, 24, 'Q', 'NOME')),
                ('DC-1-24QMEALL', ('DC', 1, 24, 'Q', 'MEALL')),
                ('DC-4-96QGFX', ('DC', 4, 96, 'Q', 'GFX')),
                ('H200X-1-18C', ('H200X', 1, 18, 'C', '')),
                ('T4-2B', ('T4', None, 2, 'B', '')),
                ('T4-2B4', ('T4', None, 2, 'B', '4')),
                ('M60-0B', ('M60', None, 0, 'B', '')),
                ('RTXA6000-48Q', ('RTXA6000', None, 48, 'Q', '')),
                ('RTX6000-Ada-12A', ('RTX6000-Ada', None, 12, 'A', ''))):
            name = names.VgpuTypeName.parse(text)
            self.assertEqual(parts, dataclasses.astuple(name), text)
            self.assertEqual(text, str(name))

    def test_refused(self):
        for text in ('', 'T4', 'T4-2', '2B', '-2B', 'T4-2X', 'T4-02B',
                     'T4-2BX', 'GRID T4-2B', 'T4-2B\n', 'A100-0-5C',
                     'A100-1-5CMEX', 'nvidia-231', '../T4-2B', None, 231):
            error = self.assertRaises(exception.InvalidValue,
                                      names.VgpuTypeName.parse, text)
            self.assertIn('PRODUCT', str(error))
