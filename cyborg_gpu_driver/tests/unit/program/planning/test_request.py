# SPDX-License-Identifier: Apache-2.0

"""Bad strings from RPC are refused before anything is built from them."""

import uuid

from hypothesis import given
from hypothesis import strategies
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.program.planning import plan

_HANDLE = '7f3b1c0e-5b6a-4d0f-9a53-0d4d8e1f2a3b'


class ParseTest(base.BaseTestCase):

    def test_good_strings_are_taken(self):
        asked = plan.parse_request('0000:3b:00.4', 'nvidia-474', _HANDLE)
        self.assertEqual('0000:3b:00.4', str(asked.function))
        self.assertEqual('nvidia-474', asked.mdev_type)
        self.assertEqual(_HANDLE, asked.handle)

    def test_upper_case_uuid_becomes_what_sysfs_shows(self):
        asked = plan.parse_request('0000:3b:00.4', 'nvidia-474',
                                   _HANDLE.upper())
        self.assertEqual(_HANDLE, asked.handle)

    def test_each_bad_string_is_named(self):
        good = ('0000:3b:00.4', 'nvidia-474', _HANDLE)
        bad = {
            0: ('../../x', '', '0000:3b:00.8', '0000:3b:20.0', None, 7,
                '0000:3b:00.4\n', '0000:3b:00.4/../x', '٠٠٠٠:3b:00.4'),
            1: ('../../x', '', 'nvidia-', 'nvidia-0', 'i915-GVTg_V5_4',
                'nvidia-474/..', 'nvidia-474\n', 'nvidia-١', None),
            2: ('../../x', '', 'x' * 36, _HANDLE[:-1], _HANDLE + '\n',
                '{' + _HANDLE + '}', _HANDLE.replace('-', ''), None, 3),
        }
        for position, values in bad.items():
            for value in values:
                strings = list(good)
                strings[position] = value
                error = self.assertRaises(exception.InvalidValue,
                                          plan.parse_request, *strings)
                self.assertIn(repr(str(value)).strip("'"), str(error))

    @given(strategies.text(), strategies.text(), strategies.text())
    def test_nothing_but_our_error_comes_of_any_text(self, address, kind,
                                                     handle):
        try:
            asked = plan.parse_request(address, kind, handle)
        except exception.InvalidValue:
            return
        for value in (str(asked.function), asked.mdev_type, asked.handle):
            self.assertNotIn('/', value)

    @given(strategies.uuids())
    def test_every_uuid_is_taken(self, value):
        self.assertEqual(value, uuid.UUID(vgpu_name.handle(str(value))))
