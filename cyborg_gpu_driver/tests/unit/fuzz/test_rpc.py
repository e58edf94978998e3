# SPDX-License-Identifier: Apache-2.0


"""RPC arguments are served or refused, and none leads out of the tree."""

import hypothesis
from hypothesis import strategies

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.tests.unit.fuzz import base

_HANDLE = '7f3b1c0e-5b6a-4d0f-9a53-0d4d8e1f2a3b'
_VALUES = strategies.one_of(
    base.PLAIN, strategies.binary(max_size=20), strategies.from_regex(
        vgpu_name._UUID, fullmatch=True))
_ADDRESSES = strategies.one_of(_VALUES, strategies.sampled_from((
    '0000:07:00.0', '0000:07:00.4', '0000:07:00.5', '0000:0f:00.4',
    '00000000:07:00.4', '0000:07:00.4/..', '0000:07:00.4\n')))
_TYPES = strategies.one_of(_VALUES, strategies.sampled_from((
    'nvidia-463', 'nvidia-464', 'nvidia-1', 'nvidia-999999999', '../../x')))
_HANDLES = strategies.one_of(_VALUES, strategies.sampled_from((
    _HANDLE, _HANDLE.upper(), '{' + _HANDLE + '}', '../' + _HANDLE[3:])))
_ARGUMENTS = strategies.tuples(_ADDRESSES, _TYPES, _HANDLES)


class RequestTest(base.FuzzCase):

    @base.examples(300)
    @hypothesis.given(_ARGUMENTS)
    @hypothesis.example(('0000:07:00.4', 'nvidia-463', _HANDLE + '/..'))
    @hypothesis.example(('0000:07:00.4', 'nvidia-463/..', _HANDLE))
    @hypothesis.example(('0000:07:00.4/..', 'nvidia-463', _HANDLE))
    def test_parse(self, arguments):
        try:
            asked = plan.parse_request(*arguments)
        except exception.InvalidValue:
            return
        for value in (str(asked.function), asked.mdev_type, asked.handle):
            self.assertRegex(value, '^[a-z0-9:.-]+$')
            self.assertNotIn('..', value)
