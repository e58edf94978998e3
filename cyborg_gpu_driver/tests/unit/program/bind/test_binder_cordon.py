# SPDX-License-Identifier: Apache-2.0

"""Binds and unbinds on a GPU that gets no new server."""

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.program import cordons
from cyborg_gpu_driver.tests.unit.program.bind import binder_case


class CordonTest(binder_case.BinderCase):

    def setUp(self):
        super().setUp()
        self.gpu_cordons = cordons.GpuCordons(self.state_path)

    def test_only_a_new_server_is_refused(self):
        old, new = self.handle('1g.5gb'), self.handle('1g.5gb', 1)
        self.binder.bind(*old)
        before = self.truth()
        self.gpu_cordons.add(self.address, 'root', 'a fan is broken')
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *new)
        self.assertRegex(
            str(error), f'GPU {self.address} is cordoned: cordoned on the '
            'host by root since .*: a fan is broken')
        # Nova repeats a bind to which it got no answer.
        self.binder.bind(*old)
        self.assertEqual(before, self.truth())
        self.binder.unbind(*old)
        self.assertEqual(([], []), self.truth())
        self.gpu_cordons.lift(self.address)
        self.binder.bind(*new)
        self.assertEqual(1, len(self.truth()[1]))
