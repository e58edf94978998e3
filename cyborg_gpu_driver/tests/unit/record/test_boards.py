# SPDX-License-Identifier: Apache-2.0

"""What is kept of a board while NVML cannot be asked."""

import dataclasses

from cyborg_gpu_driver.host.snapshot import gpu_record
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.record import test_store

ADDRESS = test_store.ADDRESS
_GIVEN = gpu_record.Modes(ecc=True)
_LEFT = gpu_record.Modes(ecc=False)


class ModesTest(test_store.StoreCase):
    """A GPU is handed over, has a server, and is handed over again."""

    def modes(self, uuid='GPU-1', **parts):
        kept = store.of(self.state_path)
        record = gpu_record.Record((None,) * 4, 'boot', 1.0, uuid='GPU-1',
                                   modes=_GIVEN)
        kept.keep_board(ADDRESS, record)
        self.records.put(ADDRESS, **parts)
        kept.keep_board(ADDRESS, dataclasses.replace(
            record, uuid=uuid, modes=_LEFT))
        return kept.board(ADDRESS).modes

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
