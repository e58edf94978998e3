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

import os
from collections.abc import Callable

from oslo_log import log as logging

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model

LOG = logging.getLogger(__name__)

_KIND = 'cyborg-gpu disabled'
_VERSION = 1


class Disabled:
    """The GPUs of which nothing is promised until they are enabled.

    What Cyborg said last counts for as long as it says nothing else.

    :param state_path: ``[gpu] state_path``.
    :param ask: returns those that are disabled now, None if that is not
        known. It must not raise.
    """

    def __init__(self, state_path: str,
                 ask: Callable[[], frozenset[model.PciAddress] | None]):
        self._path = _path(state_path)
        self._ask = ask
        self._known: frozenset[model.PciAddress] | None = None
        self._stored: frozenset[model.PciAddress] | None = None
        self._unwritten = False

    def __contains__(self, address: model.PciAddress) -> bool:
        return address in self.known

    @property
    def known(self) -> frozenset[model.PciAddress]:
        """As Cyborg said last."""
        if self._known is None:
            try:
                self._known = self._stored = _read(self._path)
            except exception.JournalError as error:
                LOG.warning('%s; no device is taken for disabled until '
                            'Cyborg tells', error)
                self._known = frozenset()
        return self._known

    def update(self) -> None:
        """Ask Cyborg, and remember what it says."""
        before, now = self.known, self._ask()
        if now is None:
            return
        for address in sorted(now - before):
            LOG.info('GPU %s is disabled in Cyborg: nothing more of it is '
                     'promised until it is enabled', address)
        for address in sorted(before - now):
            LOG.info('GPU %s is enabled in Cyborg again', address)
        self._known = now
        self._keep()

    def _keep(self):
        if self._known == self._stored or not (self._known or self._stored):
            return
        try:
            durable.write(self._path, _KIND, _VERSION,
                          [str(address) for address in sorted(self._known)])
        except exception.JournalError as error:
            if not self._unwritten:
                LOG.error('%s', error)
            self._unwritten = True
        else:
            self._stored = self._known
            self._unwritten = False


def remembered(state_path: str) -> frozenset[model.PciAddress]:
    """The GPUs that were disabled when Cyborg was last asked.

    :param state_path: ``[gpu] state_path``.
    :raises JournalError: if the record cannot be read or is damaged.
    """
    return _read(_path(state_path))


def _read(path):
    content = durable.read(path, _KIND, _VERSION)
    try:
        return frozenset(map(model.PciAddress.parse, content or ()))
    except (TypeError, exception.InvalidPciAddress) as error:
        raise exception.JournalError(
            path=path, reason=f'is damaged: {error}') from error


def _path(state_path):
    return os.path.join(state_path, 'disabled.json')
