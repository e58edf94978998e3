# SPDX-License-Identifier: Apache-2.0

"""The cordons of a machine's GPUs, kept in their records.

The agent notes which GPUs are disabled in Cyborg, an operator can cordon a
GPU on the host, and the health of a GPU may cordon it
(:mod:`.program.health`).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from oslo_log import log as logging

from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

Explain = Callable[[model.PciAddress], cordon.Cordon | None]
"""Who disabled a GPU in Cyborg, when and why; None if unknown."""


class GpuCordons:
    """Knows and changes which GPUs get no new server.

    :param clock: seconds of the epoch.
    """

    def __init__(self, state_path: str,
                 clock: Callable[[], float] = time.time):
        self._store = store.of(state_path)
        self._clock = clock
        self._disabled: frozenset[model.PciAddress] | None = None
        """The GPUs disabled by Cyborg's last answer to this process."""
        self._said = log_once.LogOnce()

    def of(self, address: model.PciAddress) -> cordon.Cordons:
        """The cordons of a GPU; none if its record is unusable."""
        return self._store.peek(address).cordons

    def known(self) -> dict[model.PciAddress, cordon.Cordons]:
        """Every GPU that is cordoned, with its cordons."""
        return {address: record.cordons for address, record
                in self._store.records().items() if record.cordons}

    def add(self, address: model.PciAddress, who: str, reason: str
            ) -> cordon.Cordons:
        """Cordon a GPU as an operator on this host.

        If an operator has cordoned the GPU already, that cordon is kept.
        """
        with self._store.gpu(address) as draft:
            known = draft.record.cordons
            if cordon.of(known, cordon.Source.OPERATOR) is None:
                known = cordon.added(known, cordon.Cordon(
                    cordon.Source.OPERATOR, self._clock(), who, reason))
                draft.record = dataclasses.replace(draft.record,
                                                   cordons=known)
        return known

    def lift(self, address: model.PciAddress) -> cordon.Cordons:
        """Lift the cordons of a GPU that an operator can lift on this host.

        This resets the count of its errors to 0.
        """
        with self._store.gpu(address) as draft:
            left = cordon.without(draft.record.cordons, cordon.ON_HOST)
            draft.record = dataclasses.replace(draft.record, cordons=left,
                                               errors=0)
        return left

    def note_disabled(self, now: frozenset[model.PciAddress] | None,
                      explain: Explain = lambda address: None) -> None:
        """Note which GPUs are disabled in Cyborg.

        :param now: the disabled GPUs. None if Cyborg did not answer: then
            its last answer counts.
        :param explain: called for each disabled GPU if the operator and the
            reason are not known yet.
        """
        if now is not None:
            self._disabled = now
        elif self._disabled is None:
            return
        now = self._disabled
        for address in sorted({*now, *self.known()}):
            if address in now:
                self._note(address, explain)
            elif cordon.of(self.of(address), cordon.Source.CYBORG):
                self._keep(address, lambda known: cordon.without(
                    known, {cordon.Source.CYBORG}))

    def log_changes(self) -> None:
        """Log each cordon once, and that a GPU has none any more.

        A GPU whose record cannot be read keeps the cordons that it had.
        """
        for address in filter(self._store.is_usable, self._store.addresses()):
            now = {item.source: item for item in self.of(address)}
            for source, item in now.items():
                if self._said.is_new(str(item), (address, source)):
                    LOG.info('GPU %(gpu)s gets no new server: %(cordon)s',
                             {'gpu': address, 'cordon': item})
            ended = [self._said.over((address, source))
                     for source in cordon.Source if source not in now]
            if any(ended) and not now:
                LOG.info('GPU %s gets servers again', address)

    def _note(self, address: model.PciAddress, explain: Explain) -> None:
        """Note that a GPU is disabled in Cyborg; ask why unless known."""
        known = cordon.of(self.of(address), cordon.Source.CYBORG)
        if (known is not None and (known.who or known.reason)
                and known.reason != cordon.FOR_A_MOVE):
            return
        told = explain(address)
        if known is None or told is not None:
            new = told or cordon.Cordon(cordon.Source.CYBORG, self._clock())
            self._keep(address, lambda cordons: cordon.added(cordons, new))

    def _keep(self, address: model.PciAddress,
              change: Callable[[cordon.Cordons], cordon.Cordons]) -> None:
        self._store.keep(address, lambda record: dataclasses.replace(
            record, cordons=change(record.cordons)))
