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

"""The health conditions in the record of one GPU. Pure."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.partition import health


@dataclasses.dataclass(frozen=True)
class HealthRecord:
    """The health conditions of a GPU; a healthy GPU has no such record."""

    boot: str
    """Boot id of the machine when the conditions were noted."""
    uuid: str | None = None
    """UUID of the board; None if it was never read."""
    conditions: tuple[health.Condition, ...] = ()

    def in_boot(self, boot: str) -> HealthRecord:
        """The record, without what a reboot since then has cured.

        :param boot: boot id of the machine.
        """
        if self.boot == boot:
            return self
        return dataclasses.replace(
            self, boot=boot,
            conditions=health.after_reset(self.conditions))

    def of_board(self, uuid: str | None) -> HealthRecord:
        """The record, emptied if it is of another board.

        :param uuid: UUID of the board; None if it is not known.
        """
        is_other = self.uuid and uuid and self.uuid != uuid
        return dataclasses.replace(
            self, uuid=uuid or self.uuid,
            conditions=() if is_other else self.conditions)

    def joined(self, kept: HealthRecord) -> HealthRecord:
        """This record with the conditions of another one.

        Of two conditions that are the same, the newer one counts.

        :param kept: a record of this boot, made without this record.
        """
        there = self.in_boot(kept.boot).of_board(kept.uuid)
        newest: dict[tuple, health.Condition] = {}
        for item in sorted((*there.conditions, *kept.conditions),
                           key=lambda item: item.last):
            earlier = newest.get((item.code, item.placement), item)
            newest[item.code, item.placement] = dataclasses.replace(
                item, first=min(item.first, earlier.first),
                count=max(item.count, earlier.count))
        return dataclasses.replace(there, conditions=tuple(newest.values()))
