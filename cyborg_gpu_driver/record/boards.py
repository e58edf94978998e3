# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""NVML's answers about each board, kept in the records of the GPUs."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.host.snapshot import gpu_record
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import store


class Boards(gpu_record.Records):
    """The boards of one machine.

    :param state_path: ``[gpu] state_path``.
    """

    def __init__(self, state_path: str):
        self._store = store.of(state_path)

    def get(self, address: model.PciAddress) -> gpu_record.Record | None:
        """The kept record of a board; logs an unusable GPU record once."""
        return self._store.peek(address).board

    def put(self, address: model.PciAddress, record: gpu_record.Record
            ) -> None:
        """Keep a new record of a board.

        A server that has had the GPU since it was clean may have changed the
        modes, so the earlier ones are kept.

        :raises JournalError: if it cannot be written to the disk.
        """
        before = self._store.peek(address)
        if (before.board is not None and before.board.uuid == record.uuid
                and (before.claims or before.tenancy is not None
                     and before.tenancy.withheld)):
            record = dataclasses.replace(record, modes=before.board.modes)
        self._store.put(address, board=record)
