# SPDX-License-Identifier: Apache-2.0

"""The hooks replace two functions of Cyborg, and can be removed."""

from cyborg.accelerator.drivers.gpu import utils
from oslotest import base

from cyborg_gpu_driver import cyborg_hooks


class SeamTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.originals = {name: getattr(utils, name)
                        for name in cyborg_hooks.FUNCTIONS}
        self.addCleanup(cyborg_hooks.remove)
        self.calls = []

    def _bind(self, *strings):
        self.calls.append(('bind', *strings))

    def _unbind(self, *strings):
        self.calls.append(('unbind', *strings))

    def test_calls_arrive_in_order(self):
        cyborg_hooks.install(self._bind, self._unbind)
        utils.create_mdev_privileged('a', 'b', 'c')
        utils.remove_mdev_privileged('d', 'e', 'f')
        self.assertEqual([('bind', 'a', 'b', 'c'), ('unbind', 'd', 'e', 'f')],
                         self.calls)

    def test_installing_twice_keeps_cyborgs_own(self):
        cyborg_hooks.install(self._bind, self._unbind)
        cyborg_hooks.install(self._unbind, self._bind)
        utils.create_mdev_privileged('a', 'b', 'c')
        self.assertEqual([('unbind', 'a', 'b', 'c')], self.calls)
        self.assertEqual('', cyborg_hooks.mismatch())
        for name, function in self.originals.items():
            self.assertIs(function, cyborg_hooks.original(name))

    def test_removed_means_as_before(self):
        cyborg_hooks.install(self._bind, self._unbind)
        cyborg_hooks.remove()
        for name, function in self.originals.items():
            self.assertIs(function, getattr(utils, name))

    def test_a_changed_signature_is_named(self):
        def create_mdev_privileged(pci_addr, mdev_type, ah_uuid, extra):
            """A signature that another release might have."""

        self.addCleanup(setattr, utils, 'create_mdev_privileged',
                        self.originals['create_mdev_privileged'])
        utils.create_mdev_privileged = create_mdev_privileged
        self.assertIn('extra', cyborg_hooks.mismatch())
        self.assertIn('create_mdev_privileged', cyborg_hooks.mismatch())

    def test_a_function_that_is_gone_is_named(self):
        self.addCleanup(setattr, utils, 'remove_mdev_privileged',
                        self.originals['remove_mdev_privileged'])
        del utils.remove_mdev_privileged
        self.assertIn('remove_mdev_privileged', cyborg_hooks.mismatch())
        utils.remove_mdev_privileged = self.originals['remove_mdev_privileged']
