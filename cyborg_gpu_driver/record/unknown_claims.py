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

"""The GPUs whose claims are not known now, because of an unusable record."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import store

LOST = 'was damaged, and its claims are not rebuilt yet'
"""What is wrong with a record, for people."""


@dataclasses.dataclass(frozen=True)
class Unknown:
    """Why the claims of a GPU are not known, and what an operator can do.

    Both are for people, without a full stop.
    """

    reason: str
    remedy: str


def of(state_path: str) -> dict[model.PciAddress, Unknown]:
    """The GPUs whose claims are not known now.

    :param state_path: ``[gpu] state_path``.
    :raises JournalUnreadable: if the directory of the records cannot be
        read.
    """
    records = store.of(state_path)
    found = {}
    for address in records.addresses():
        try:
            if records.read(address).claims_lost:
                found[address] = Unknown(
                    f'its record {LOST}',
                    'each report of the agent and "cyborg-gpu doctor '
                    '--repair" try to rebuild them; in mode nvlink this '
                    'needs [gpu] os_cloud; if the GPU has been removed for '
                    'good, delete ' + records.path(address))
        except exception.JournalUnreadable as error:
            found[address] = Unknown(
                str(error),
                'make the file readable for the user of cyborg-agent')
        except exception.JournalError as error:
            found[address] = Unknown(
                str(error),
                'the next report of the agent moves the damaged record aside '
                'and rebuilds it; "cyborg-gpu doctor --repair" does so now')
    return found
