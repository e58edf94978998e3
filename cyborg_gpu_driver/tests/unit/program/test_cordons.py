# SPDX-License-Identifier: Apache-2.0

import dataclasses
import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.program import cordons
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import unreadable

ONE, OTHER = (model.PciAddress(0, bus, 0, 0) for bus in (7, 0x41))
ANN = cordon.Cordon(cordon.Source.CYBORG, 5.0, 'ann', 'a move')
ROOT = cordon.Cordon(cordon.Source.OPERATOR, 9.0, 'root', 'a fan')
PLAIN = cordon.Cordon(cordon.Source.CYBORG, 9.0)


def closed(address, new):
    return f'GPU {address} gets no new server: {new}'


def opened(address):
    return f'GPU {address} gets servers again'


class CordonsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.path = self.useFixture(fixtures.TempDir()).path
        self.gpu_cordons = self.again()

    def again(self):
        """Return the gpu_cordons that another process has."""
        return cordons.GpuCordons(self.path, lambda: 9.0)

    def disable(self, *addresses, told=None):
        self.gpu_cordons.note_disabled(frozenset(addresses),
                                       lambda address: told)

    def changed(self):
        """Return the lines of the log about changed cordons."""
        with fixtures.FakeLogger(cordons.__name__, 'INFO') as log:
            self.gpu_cordons.log_changes()
            return log.output.splitlines()

    def test_a_record_that_cannot_be_read_changes_nothing(self):
        self.gpu_cordons.add(ONE, 'root', 'a fan')
        self.assertEqual([closed(ONE, ROOT)], self.changed())
        with unreadable.file(store.of(self.path).path(ONE)):
            self.assertEqual([], self.changed())
        self.assertEqual([], self.changed())
        self.gpu_cordons.lift(ONE)
        self.assertEqual([opened(ONE)], self.changed())

    def test_nothing_is_written_while_none_is_cordoned(self):
        self.disable()
        self.assertEqual({}, self.gpu_cordons.known())
        self.assertFalse(os.path.exists(store.of(self.path).path(ONE)))

    def test_who_and_why_may_be_told_later(self):
        nobody = dataclasses.replace(ANN, who='')
        move = dataclasses.replace(ANN, reason=cordon.FOR_A_MOVE)
        # Once the reason is known, it is not asked for again. That of a move
        # gives way to that of an operator.
        for told, known in (((None, ANN, PLAIN), ANN),
                            ((nobody, PLAIN), nobody), ((move, ANN), ANN)):
            for item in told:
                self.disable(ONE, told=item)
            self.assertEqual((known,), self.gpu_cordons.of(ONE))
            self.disable()

    def test_the_first_cordon_on_the_host_stays(self):
        self.gpu_cordons.add(ONE, 'root', 'a fan')
        self.assertEqual((ROOT,), self.gpu_cordons.add(ONE, 'ann', 'more'))

    def test_a_damaged_record(self):
        self.disable(ONE)
        for content in ('', '{}'):
            with open(store.of(self.path).path(ONE), 'w',
                      encoding='utf-8') as stream:
                stream.write(content)
            self.assertEqual((), self.again().of(ONE))
            store.of(self.path).check()
            # This works even while Cyborg does not answer.
            self.gpu_cordons.note_disabled(None)
            found = self.again().of(ONE)
            self.assertEqual((PLAIN,), found[:1])
            self.assertEqual([cordon.Source.RECORD],
                             [item.source for item in found[1:]])
        self.again().lift(ONE)
        self.assertEqual((PLAIN,), self.again().of(ONE))

    def test_changes(self):
        self.disable()
        self.assertEqual([], self.changed())
        self.again().add(ONE, 'root', 'a fan')
        self.disable(OTHER, told=ANN)
        self.assertEqual([closed(ONE, ROOT), closed(OTHER, ANN)],
                         self.changed())
        self.disable(ONE, OTHER, told=ANN)
        self.assertEqual([closed(ONE, ANN)], self.changed())
        self.again().lift(ONE)
        self.disable()
        self.assertEqual([opened(ONE), opened(OTHER)],
                         self.changed())
        self.assertEqual([], self.changed())
