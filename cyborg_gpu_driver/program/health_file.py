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


"""What is known of sick GPUs, in a file that outlives the process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import fields
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import health

LOG = logging.getLogger(__name__)

_KIND = 'cyborg-gpu health'
_VERSION = 1
_CODE = re.compile('XID_[0-9]{1,9}|(?!XID_)[A-Z][A-Z0-9_]{,99}', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Record:
    """What ails one GPU."""

    boot: str
    """Of the machine when that was noted."""
    uuid: str | None = None
    """Of the board; None where it was never read."""
    ailments: tuple[health.Ailment, ...] = ()


Records = Mapping[model.PciAddress, Record]


class HealthFile:
    """The records of this machine's sick GPUs; healthy ones have none.

    :param state_path: ``[gpu] state_path``.
    """

    def __init__(self, state_path: str):
        self._state_path = state_path
        self.path = os.path.join(state_path, 'health.json')

    def held(self) -> contextlib.AbstractContextManager:
        """Keep others from changing the file, in this process or another.

        :raises JournalError: if that cannot be had, or not in time.
        """
        return locks.health(self._state_path)

    def read(self) -> dict[model.PciAddress, Record]:
        """The records; none without a file.

        :raises JournalError: if it cannot be read or is damaged.
        """
        content = durable.read(self.path, _KIND, _VERSION) or []
        try:
            return dict(map(_record, content))
        except (KeyError, TypeError, ValueError, AttributeError,
                exception.InvalidPciAddress) as error:
            raise exception.JournalError(
                path=self.path, reason=f'is damaged: {error!r}') from error

    def read_or_set_aside(self) -> dict[model.PciAddress, Record]:
        """The records; of a damaged file none, and it is moved away.

        :raises JournalError: if it may well be usable, by others; or cannot
            be moved.
        """
        try:
            return self.read()
        except exception.JournalUnreadable:
            raise
        except exception.JournalError as error:
            LOG.error('%(error)s. It was moved to %(kept)s; the health of '
                      'the GPUs is found out anew.',
                      {'error': error, 'kept': durable.set_aside(self.path)})
            return {}

    def write(self, records: Records) -> None:
        """Put the records in the place of those that are there.

        :raises JournalError: if they cannot be put on the disk.
        """
        durable.write(self.path, _KIND, _VERSION, [
            {'gpu': str(address), 'boot': record.boot, 'uuid': record.uuid,
             'ailments': list(map(_to_json, record.ailments))}
            for address, record in sorted(records.items())])


def _to_json(ailment):
    place = ailment.placement
    return dict(dataclasses.asdict(ailment), placement=place and {
        'start': place.start, 'size': place.size})


def _record(item: dict[str, Any]) -> tuple[model.PciAddress, Record]:
    return model.PciAddress.parse(item['gpu']), Record(
        fields.text(item['boot']),
        None if item['uuid'] is None else fields.text(item['uuid']),
        tuple(map(_ailment, item['ailments'])))


def _ailment(item):
    place = item['placement']
    return health.Ailment(**dict(
        item, code=_code(item['code']),
        first=fields.time(item['first']), last=fields.time(item['last']),
        count=fields.number(item['count']), clean=fields.number(item['clean']),
        placement=None if place is None else model.Placement(
            fields.number(place['start']), fields.number(place['size'])),
        instance_id=None if item['instance_id'] is None
        else fields.number(item['instance_id'])))


def _code(value):
    """A code, which becomes part of a trait's name."""
    if not _CODE.fullmatch(fields.text(value)):
        raise ValueError(f'{value!r} is no code')
    return value
