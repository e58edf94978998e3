# SPDX-License-Identifier: Apache-2.0

"""Errors say what is wrong and survive the transfer by oslo.privsep."""

import pickle

from oslotest import base

from cyborg_gpu_driver import exception


class ExceptionTest(base.BaseTestCase):

    def test_every_error_can_be_made_again_from_its_args(self):
        for error in (
                exception.NvmlError(call='c', code=3, symbol='S'),
                exception.SysfsError(action='write', path='/sys/x', errno=5,
                                     reason='Input/output error'),
                exception.InvalidValue('x'),
                exception.InvalidValue(what='a', value='b', expected='c')):
            for again in (type(error)(*error.args),
                          pickle.loads(pickle.dumps(error))):
                self.assertEqual(str(error), str(again))
                self.assertEqual(error.kwargs, again.kwargs)
