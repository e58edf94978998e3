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

"""GPUs that an operator has disabled in Cyborg, remembered over restarts."""

from __future__ import annotations

from oslo_log import log as logging

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)


class Disabled:
    """The GPUs of which nothing is promised until they are enabled.

    What Cyborg said last counts for as long as it says nothing else.

    :param state_path: ``[gpu] state_path``.
    """

    def __init__(self, state_path: str):
        self._state_path = state_path
        self._store = store.of(state_path)
        self._known: frozenset[model.PciAddress] | None = None

    def __contains__(self, address: model.PciAddress) -> bool:
        return address in self.known

    @property
    def known(self) -> frozenset[model.PciAddress]:
        """As Cyborg said last."""
        if self._known is None:
            self._known = remembered(self._state_path)
        return self._known

    def update(self, now: frozenset[model.PciAddress] | None) -> None:
        """Remember what Cyborg says.

        :param now: the GPUs that are disabled; None if Cyborg did not
            answer, which changes nothing.
        """
        if now is None:
            return
        before = self.known
        for address in sorted(now - before):
            LOG.info('GPU %s is disabled in Cyborg: no further server gets it '
                     'until it is enabled', address)
        for address in sorted(before - now):
            LOG.info('GPU %s is enabled in Cyborg again', address)
        self._known = now
        for address in sorted(now | remembered(self._state_path)):
            self._store.observe(address, disabled=address in now)


def remembered(state_path: str) -> frozenset[model.PciAddress]:
    """The GPUs that were disabled when Cyborg was last asked.

    One whose record cannot be used is not among them; that is logged.

    :param state_path: ``[gpu] state_path``.
    """
    return frozenset(
        address for address, record
        in store.of(state_path).records().items() if record.disabled)
