# SPDX-License-Identifier: Apache-2.0

"""The metrics of one host, from the GPU records and the agent's state file.

Nothing here opens a GPU or calls a service, so a scrape never waits for
either, and never keeps a GPU from a server. Hardware values come from samples
that were taken before (:mod:`cyborg_gpu_driver.metrics.sampler`).
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from prometheus_client import core
from prometheus_client import registry

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.metrics import owners
from cyborg_gpu_driver.metrics import sampler
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import ledger
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.record import uptime

_FAMILIES = {
    definitions.Kind.GAUGE: core.GaugeMetricFamily,
    definitions.Kind.COUNTER: core.CounterMetricFamily,
    definitions.Kind.HISTOGRAM: core.HistogramMetricFamily}


class _Scrape:
    """The families of one scrape."""

    def __init__(self, metrics: Iterable[definitions.Metric]) -> None:
        self._families = {
            metric: _FAMILIES[metric.kind](
                definitions.PREFIX + metric.name, metric.help,
                labels=metric.labels)
            for metric in metrics}

    def add(self, metric: definitions.Metric, value: float, *labels: str
            ) -> None:
        self._families[metric].add_metric(labels, float(value))

    def add_latency(self, metric: definitions.Metric,
                    latency: state.Latency, *labels: str) -> None:
        bounds = (*map(str, definitions.BUCKETS), '+Inf')
        total, buckets = 0, []
        for bound, count in zip(bounds, latency.counts, strict=True):
            total += count
            buckets.append((bound, total))
        self._families[metric].add_metric(labels, buckets, latency.seconds)

    def families(self) -> Iterator[core.Metric]:
        return iter(self._families.values())


class Collector(registry.Collector):
    """Collects the metrics of a scrape; reads the files each time.

    :param hostname: the compute node's name, used until the agent has
        written its own.
    :param version: version of this library.
    """

    def __init__(self, state_path: str, hostname: str, version: str,
                 hardware: sampler.Sampler | None = None,
                 domains: owners.Watch | None = None):
        self._state_path = state_path
        self._hostname = hostname
        self._version = version
        self._store = store.Store(state_path)
        self._hardware = hardware
        self._domains = domains

    def describe(self) -> Iterator[core.Metric]:
        """Return no metric, so that registration reads no file."""
        return iter(())

    def collect(self) -> Iterator[core.Metric]:
        """Yield all metric families.

        :raises JournalError: if the state directory cannot be read at all.
        """
        scrape = _Scrape(definitions.METRICS)
        bad = 0
        # Before the records: what has ended, ended after the report that is
        # read here.
        last, counts = None, True
        try:
            last = uptime.last(self._state_path)
        except exception.JournalError:
            bad, counts = 1, False
        try:
            known = state.read(self._state_path)
        except exception.JournalError:
            known, bad = None, bad + 1
        hostname = known.hostname if known else self._hostname
        hardware = self._hardware.take() if self._hardware else {}
        whose = owners.Owners(
            known.owners if known else {},
            self._domains.take() if self._domains else owners.Listing())
        for address in self._store.addresses():
            try:
                record = self._store.read(address)
            except exception.JournalError:
                bad += 1
                continue
            gpu = _Gpu(scrape, hostname, address, record, whose)
            gpu.add(known.gpus.get(address) if known else None)
            if counts:
                gpu.add_time(last)
            if known is not None:
                gpu.add_xids(known.xids.get(address, {}))
        scrape.add(definitions.BAD_RECORDS, bad, hostname)
        scrape.add(definitions.BUILD, 1, hostname, self._version)
        scrape.add(definitions.STATE, known.written if known else 0, hostname)
        if known is not None:
            _add_agent(scrape, known)
        yield from scrape.families()
        if self._hardware is not None:
            yield from _hardware(hostname, hardware)


class _Gpu:
    """Adds the metrics of one GPU to a scrape."""

    def __init__(self, scrape: _Scrape, hostname: str,
                 address: model.PciAddress, record: gpu_record.GpuRecord,
                 whose: owners.Owners):
        self._scrape = scrape
        self._record = record
        self._whose = whose
        self._address = address
        facts = record.reported.facts if record.reported else None
        self._model = (facts and facts.model) or ''
        self._labels = (hostname, str(address),
                        (facts and facts.uuid) or '')

    def add(self, known: state.GpuState | None) -> None:
        """Add all metrics of the GPU, except its XIDs."""
        record = self._record
        if record.reported is not None:
            self._add(definitions.INFO, 1, bus_id(self._address),
                      self._model, record.reported.mode)
        self._add_claims()
        self._add_tenants()
        self._add(definitions.DISABLED, cordon.of(
            record.cordons, cordon.Source.CYBORG) is not None)
        self._add(definitions.CORDONED, bool(record.cordons))
        for item in record.cordons:
            self._add(definitions.CORDON, item.since or 0.0,
                      item.source.value, item.who, item.reason)
        self._add(definitions.CHANGES, record.change is not None)
        self._add(definitions.NOT_CLEAN, record.awaits_reset)
        conditions = record.health.conditions if record.health else ()
        for code in sorted({item.code for item in conditions}):
            self._add(definitions.CONDITION, 1, code)
        self._add(definitions.HEALTHY, known.healthy if known
                  else not health.judge(conditions).is_unhealthy)
        if known is not None:
            self._add_offers(known)

    def add_xids(self, counts: Mapping[str, int]) -> None:
        """Add the XIDs that NVML has reported to the agent."""
        for xid, count in counts.items():
            self._add(definitions.XIDS, count, xid)

    def add_time(self, last: ledger.Moment | None) -> None:
        """Add how long servers have had it, up to the last report."""
        sums = self._record.ledger.sums(last)
        for (profile, project), milliseconds in sums.items():
            self._add(definitions.TIME, milliseconds / 1000, profile, project)

    def _add(self, metric: definitions.Metric, value: float, *labels: str
             ) -> None:
        self._scrape.add(metric, value, *self._labels, *labels)

    def _add_claims(self) -> None:
        phases = collections.Counter(
            claim.phase for claim in self._record.claims)
        for phase in gpu_record.Phase:
            self._add(definitions.CLAIMS, phases[phase], phase.value)
        for claim in self._record.claims:
            if claim.phase is gpu_record.Phase.BINDING:
                continue
            on_instance = claim.instance_id is not None
            self._add(
                definitions.ASSIGNMENT, 1,
                str(claim.instance_id) if on_instance else '',
                claim.profile if on_instance else '', claim.profile,
                claim.handle, claim.vgpu.uuid or '',
                '' if claim.members else str(claim.function),
                *self._whose.of_claim(claim))
            if claim.since is not None:
                self._add(definitions.ASSIGNED, claim.since, claim.handle)

    def _add_tenants(self) -> None:
        tenancy = self._record.tenancy
        if tenancy is None or tenancy.state is not cleaning.State.USED:
            return
        for server in tenancy.tenants:
            self._add(definitions.ASSIGNMENT, 1, '', '',
                      policy.Mode.PASSTHROUGH.value, '', '', '',
                      *self._whose.of_server(server))

    def _add_offers(self, known: state.GpuState) -> None:
        for offer in known.offers:
            labels = offer.mode, offer.profile, offer.resource_class
            for metric, value in (
                    (definitions.CAPACITY, offer.total),
                    (definitions.IN_USE, offer.in_use),
                    (definitions.RESERVED, offer.reserved),
                    (definitions.OPEN, offer.open),
                    (definitions.CREATABLE, offer.creatable)):
                self._add(metric, value, *labels)
        if known.free_slices is not None:
            self._add(definitions.FREE_SLICES, known.free_slices)
            self._add(definitions.LARGEST_SLICES, known.largest_slices or 0)


def _hardware(hostname: str,
              hardware: Mapping[model.PciAddress, sampler.Gpu]
              ) -> Iterator[core.Metric]:
    """Return the metric families of the latest sample of each GPU."""
    scrape = _Scrape(definitions.SAMPLED)
    for address, gpu in hardware.items():
        labels = hostname, str(address), gpu.uuid
        scrape.add(definitions.FAILED_SAMPLES, gpu.failed, *labels)
        if gpu.age is not None:
            scrape.add(definitions.SAMPLE_AGE, gpu.age, *labels)
        for value in gpu.values:
            scrape.add(definitions.HARDWARE[value.metric], value.value,
                       *labels, *value.labels)
    return scrape.families()


def _add_agent(scrape: _Scrape, known: state.State) -> None:
    """Add what the agent reports about itself."""
    host = known.hostname
    # Add counters of 0 too, or increase() would miss their first increment.
    for operation in state.OPERATIONS:
        counts = known.operations.get(operation, {})
        for result in state.RESULTS:
            scrape.add(definitions.OPERATIONS, counts.get(result, 0), host,
                       operation, result)
        scrape.add_latency(
            definitions.DURATION,
            known.latencies.get(operation, state.Latency()), host, operation)
    for kind in (item.value for item in reconcile.Kind):
        scrape.add(definitions.DRIFT, known.drift.get(kind, 0), host, kind)
        scrape.add(definitions.REPAIRED, known.repaired.get(kind, 0), host,
                   kind)
    for metric, value in (
            (definitions.LAST_REPORT, known.last_report or 0),
            (definitions.DEADLINES, known.missed_deadlines),
            (definitions.STUCK, known.stuck_calls),
            (definitions.UNWRITTEN, known.unwritten)):
        scrape.add(metric, value, host)


def bus_id(address: model.PciAddress) -> str:
    """Return an address as NVML writes it (nvml.h: busId of nvmlPciInfo_t)."""
    return (f'{address.domain:08X}:{address.bus:02X}:{address.device:02X}.'
            f'{address.function:X}')
