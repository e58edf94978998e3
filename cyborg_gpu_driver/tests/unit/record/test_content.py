# SPDX-License-Identifier: Apache-2.0

"""What a damaged record, or one of a later release, still tells."""

import dataclasses

from cyborg_gpu_driver import durable
from cyborg_gpu_driver.host.snapshot import gpu_record as boards
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.record import test_store

_ADDRESS = test_store.ADDRESS
_BINDING = gpu_record.Phase.BINDING
_FULL = gpu_record.GpuRecord(
    claims=(test_store.claim(1, phase=_BINDING),
            test_store.claim(2, phase=_BINDING)),
    fixed=test_store.FIXED, layout=test_store.LAYOUT,
    cordons=(cordon.Cordon(cordon.Source.OPERATOR, 1.0, 'ann', 'fan'),),
    health=gpu_record.HealthRecord('boot', None, (
        health.Condition('XID_79', 1.0, 1.0),)))


class _ContentCase(test_store.StoreCase):

    def setUp(self):
        super().setUp()
        with self.records.gpu(_ADDRESS) as draft:
            draft.record = _FULL
        self.path = self.records.path(_ADDRESS)

    def raw(self):
        return durable.read(self.path, store.KIND, store.VERSION)

    def change(self, change, version=store.VERSION):
        """Change the file as another release would write it."""
        found = self.raw()
        change(found)
        durable.write(self.path, store.KIND, version, found)

    def sources(self):
        return [item.source for item in self.again().read(_ADDRESS).cordons]

    def found(self):
        """The record as an agent has it after a report has begun."""
        records = self.again()
        records.check()
        return records.read(_ADDRESS)


class LaterReleaseTest(_ContentCase):

    def test_unknown_fields_are_ignored_wherever_they_are(self):
        def change(found):
            found['colour'] = 'blue'
            found['claims'][1]['tenant'] = {'name': 'x'}
            found['cordons'][0]['until'] = 7
            found['layout']['layout']['instances'][0]['speed'] = 3
            found['health']['conditions'][0]['serial'] = [1]

        self.change(change)
        self.assertEqual(_FULL, self.found())
        self.assertNotIn('moved', self.log.output)

    def test_a_later_version_loses_nothing_that_can_be_read(self):
        self.change(lambda found: found.update(colour='blue'), 3)
        self.assertEqual(_FULL, self.found())
        self.assertEqual(_FULL, self.again().read(_ADDRESS))


class PartTest(_ContentCase):

    def lose(self, **parts):
        self.change(lambda found: found.update(parts))
        return self.found()

    def test_a_layout(self):
        self.assertEqual(dataclasses.replace(_FULL, layout=None),
                         self.lose(layout=7))
        self.assertIn('lost: layout.', self.log.output)

    def test_claims(self):
        found = self.lose(claims=[{'handle': 'x'}])
        self.assertEqual(dataclasses.replace(
            _FULL, claims=(), claims_lost=True), found)
        self.assertIn('rebuilt', self.log.output)

    def test_the_last_report(self):
        self.assertTrue(self.lose(reported=7).claims_lost)

    def test_cordons(self):
        found = self.lose(cordons=[{'source': 'moon'}])
        self.assertEqual([cordon.Source.RECORD], self.sources())
        self.assertEqual(_FULL, dataclasses.replace(
            found, cordons=_FULL.cordons))
        self.assertIn('gpu uncordon', self.log.output)

    def test_health(self):
        found = self.lose(health={'boot': 3})
        self.assertIsNone(found.health)
        self.assertEqual([cordon.Source.OPERATOR, cordon.Source.RECORD],
                         self.sources())

    def test_a_wrong_checksum_keeps_only_what_closes_the_gpu(self):
        with open(self.path, encoding='utf-8') as stream:
            text = stream.read()
        with open(self.path, 'w', encoding='utf-8') as stream:
            stream.write(text.replace('"fan"', '"fun"'))
        found = self.found()
        self.assertEqual(_FULL.health, found.health)
        self.assertEqual([cordon.Source.OPERATOR, cordon.Source.RECORD],
                         self.sources())
        self.assertEqual(gpu_record.GpuRecord(claims_lost=True),
                         dataclasses.replace(found, health=None, cordons=()))

    def test_the_record_of_another_gpu(self):
        durable.write(self.records.path(test_store.OTHER), store.KIND,
                      store.VERSION, self.raw())
        records = self.again()
        records.check()
        found = records.read(test_store.OTHER)
        self.assertEqual([cordon.Source.RECORD],
                         [item.source for item in found.cordons])
        self.assertEqual(gpu_record.GpuRecord(claims_lost=True),
                         dataclasses.replace(found, cordons=()))


_GIVEN = boards.Modes(ecc=True)
_LEFT = boards.Modes(ecc=False)


class ModesTest(test_store.StoreCase):
    """A GPU is handed over, has a server, and is handed over again."""

    def modes(self, uuid='GPU-1', **parts):
        kept = store.of(self.state_path)
        record = boards.Record((None,) * 4, 'boot', 1.0, uuid='GPU-1',
                               modes=_GIVEN)
        kept.keep_board(_ADDRESS, record)
        self.records.put(_ADDRESS, **parts)
        kept.keep_board(_ADDRESS, dataclasses.replace(
            record, uuid=uuid, modes=_LEFT))
        return kept.board(_ADDRESS).modes

    def test_a_clean_gpu(self):
        self.assertEqual(_LEFT, self.modes())
        self.assertEqual(_LEFT, self.modes(
            tenancy=cleaning.Known(cleaning.State.FREE)))

    def test_a_server_has_had_it(self):
        for state in (cleaning.State.USED, cleaning.State.STUCK):
            self.assertEqual(_GIVEN, self.modes(
                tenancy=cleaning.Known(state)))
            self.assertEqual(_LEFT, self.modes(
                'GPU-2', tenancy=cleaning.Known(state)))

    def test_a_server_has_its_group(self):
        self.assertEqual(_GIVEN, self.modes(claims=(test_store.claim(),)))
