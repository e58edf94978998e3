# SPDX-License-Identifier: Apache-2.0

"""Takes snapshots of the machine from sysfs and NVML.

A fault of a GPU costs the details of that GPU, never the snapshot. GPUs are
read in parallel, so a GPU that does not answer in time delays no other. What
may change is read for each snapshot. What cannot be read is left out and
reported as a problem; it is never taken from an earlier snapshot. Only a GPU
that NVML is not queried about, because it is bound to another driver, has the
facts of its record.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform as platform_module
from cyborg_gpu_driver.host import problems as problems_module
from cyborg_gpu_driver.host.fabric import config as fabric_config
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import gpu as nvml_gpu
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import gpu_record
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.host.sysfs import functions
from cyborg_gpu_driver.host.sysfs import pci


class HostReader:
    """Takes snapshots of one machine.

    :param platform: the machine, real or simulated. Nothing of it is opened
        before the first snapshot.
    """

    def __init__(self, platform: platform_module.Platform):
        self._nvml = platform.nvml
        self._records = platform.records
        self._fabric_config = platform.fabric_config
        self._services = platform.services
        self.boot_id = platform.boot_id
        self._bus = pci.PciBus(platform.sysfs)
        self._functions = functions.FunctionReader(
            self._bus, platform.sysfs)
        self._gpus = nvml_gpu.GpuReader(platform.nvml)
        self._chronicle = problems_module.Chronicle()
        self._links: dict[model.PciAddress, dict[str, Any]] = {}
        """The facts about NVLink of each GPU, from the last snapshot with
        links."""
        self._mutex = threading.Lock()

    @gate.series
    def snapshot(self, detail: bool = False, links: bool = True
                 ) -> model.Host:
        """Return the machine as it is now.

        Does not raise for a hardware fault.

        :param detail: also read the details that take long and that users
            see: UUIDs of MIG devices, availability on each virtual function.
        :param links: whether to read the NVLinks of GPUs, which takes about
            40 calls per GPU, once per session.
        """
        host = self._read(detail, links)
        with self._mutex:
            self._chronicle.tell({
                'The machine': host.problems,
                **{f'GPU {gpu.address}': gpu.problems for gpu in host.gpus},
                **{f'Virtual function {function.address}': (function.problem,)
                   for gpu in host.gpus for function in gpu.vfs
                   if function.problem}})
            if links:
                self._links = {gpu.address: {
                    'nvlink_peers': gpu.nvlink_peers,
                    'nvlink_open': gpu.nvlink_open} for gpu in host.gpus}
        return host

    @gate.series
    def gpu(self, address: model.PciAddress) -> model.Gpu:
        """Return one GPU as it is now.

        Queries no other GPU.
        """
        identities = self._identities(problems_module.Problems())
        identity = identities.get(address)
        if identity is None or identity.physfn in identities:
            raise exception.UnknownGpu(address=address)
        problems = problems_module.Problems()
        mdevs = self._functions.mdevs(problems)
        (gpu,) = self._gpus_of([identity], mdevs, problems.all(), False,
                               self._nvml.problem() is None)
        return dataclasses.replace(gpu, **self._links.get(address, {}))

    def complete_gpu(self, address: model.PciAddress) -> model.Gpu:
        """Like :meth:`gpu`, but raise if a part of the GPU is missing."""
        gpu = self.gpu(address)
        doubts = condition.doubts(gpu)
        if doubts:
            raise exception.StepFailed(reason='; '.join(doubts))
        return gpu

    def owner(self, function: model.PciAddress) -> model.PciAddress | None:
        """Return the GPU that a PCI function belongs to.

        The function is the GPU itself or one of its virtual functions. Reads
        sysfs only; returns None if sysfs shows no such function.
        """
        identities = self._identities(problems_module.Problems())
        identity = identities.get(function)
        if identity is None:
            return None
        return (identity.physfn if identity.physfn in identities
                else identity.address)

    def bound(self) -> tuple[model.Gpu, ...]:
        """Return the GPUs that are bound to nvidia, from sysfs.

        An NVML session opens all of them, and NVIDIA's driver does not
        release a GPU that is open
        (:mod:`cyborg_gpu_driver.host.usage`).
        """
        problems = problems_module.Problems()
        identities = self._identities(problems)
        return tuple(
            gpu for gpu in (
                self._functions.bare(identity, problems)
                for identity in identities.values()
                if identity.physfn not in identities)
            if _is_nvidias(gpu))

    def _identities(self, problems: problems_module.Problems
                    ) -> dict[model.PciAddress, pci.Identity]:
        return {identity.address: identity
                for identity in self._bus.functions(problems)}

    def _read(self, detail: bool, links: bool) -> model.Host:
        problems = problems_module.Problems()
        identities = self._identities(problems)
        unidentified = problems_module.Problems(problems.all())
        mdevs = self._functions.mdevs(problems)
        unlisted = problems.all()[len(unidentified.all()):]
        nvml_problem = self._nvml.problem()
        shown = [identity for identity in identities.values()
                 if identity.physfn not in identities]
        for identity in shown:
            if not identity.physfn_known:
                unidentified.add(f'{identity.address} may be a virtual '
                                 'function')
        gpus = self._gpus_of(shown, mdevs, unlisted, detail,
                             nvml_problem is None)
        self._functions.keep(identities)
        if nvml_problem is None and self._nvml.problem() is not None:
            # NVML went away meanwhile: report it once, not once per GPU.
            return self._read(detail, links)
        running = self._services()
        return model.Host(
            gpus=self._with_links(gpus) if links else tuple(sorted(
                gpus, key=lambda gpu: gpu.address)),
            driver_version=self._driver_version(problems, nvml_problem),
            nvml_problem=nvml_problem,
            library_missing=self._nvml.library_missing,
            unidentified=unidentified.all(),
            problems=problems.all(),
            nova_unpatched=running is not None and running.nova_unpatched)

    def _gpus_of(self, identities: Iterable[pci.Identity],
                 mdevs: functions.Mdevs, unlisted: Iterable[str], detail: bool,
                 with_nvml: bool) -> list[model.Gpu]:
        """Return the GPUs that are on the PCI bus."""
        readings, problems_of, asked = {}, {}, []
        for identity in identities:
            problems = problems_of[identity.address] = (
                problems_module.Problems())
            for reason in (*identity.problems, *unlisted):
                problems.add(reason)
            gpu = self._functions.bare(identity, problems)
            readings[gpu.address] = nvml_gpu.Reading(
                self._recorded(gpu) or gpu)
            if with_nvml and _is_nvidias(gpu):
                asked.append(gpu)
        for reading in self._gpus.complete(asked, detail):
            readings[reading.gpu.address] = reading
        return [self._finished(reading, mdevs, problems_of[address], detail)
                for address, reading in readings.items()]

    def _recorded(self, gpu: model.Gpu) -> model.Gpu | None:
        """The GPU with its recorded facts; None if there are none to use.

        A GPU that was bound to vfio-pci at boot has no record. Then NVIDIA's
        table of names is used.
        """
        if gpu.physfn is not None or gpu.driver == whole.NVIDIA:
            return None
        record = self._records.board(gpu.address)
        if record is not None:
            gpu = gpu_record.complete(gpu, record, self.boot_id())
        return gpu_record.complete_board(gpu)

    def _finished(self, reading: nvml_gpu.Reading, mdevs: functions.Mdevs,
                  problems: problems_module.Problems, detail: bool
                  ) -> model.Gpu:
        for reason in reading.reasons:
            problems.add(reason)
        gpu = self._functions.with_vgpus(reading.gpu, mdevs, problems,
                                         detail)
        gpu = self._gpus.with_free_placements(gpu, problems)
        return dataclasses.replace(gpu, problems=problems.all())

    def _driver_version(self, problems: problems_module.Problems,
                        nvml_problem: str | None) -> str | None:
        if nvml_problem is None:
            with problems.noted('driver version'):
                return self._nvml.driver_version()
        return None

    def _with_links(self, gpus: list[model.Gpu]) -> tuple[model.Gpu, ...]:
        """Set the facts about NVLink, now that all GPUs are known.

        GPUs on NVSwitches are peers of each other: within one machine the
        switches reach every GPU on them. A link to a GPU that is bound to
        another driver is not active; the record of that GPU names its peers.
        """
        remembered = collections.defaultdict(set)
        for gpu in gpus:
            for peer in gpu.nvlink_peers:
                remembered[peer].add(gpu.address)
        present = {gpu.address for gpu in gpus}
        problems = {gpu.address: problems_module.Problems(gpu.problems)
                    for gpu in gpus}
        links: Mapping = {
            gpu.address: self._gpus.links(gpu.address, problems[gpu.address])
            for gpu in gpus if gpu.visible_to_nvml}
        switched = {address for address, (_, on_switch) in links.items()
                    if on_switch}
        found = []
        reason = self._open_reason()
        for gpu in sorted(gpus, key=lambda gpu: gpu.address):
            ends, on_switch = links.get(gpu.address, ((), False))
            is_open = on_switch or reason and self._may_be_on_switches(
                gpu, bool(ends))
            peers = {*ends, *(switched if on_switch else ()),
                     *gpu.nvlink_peers, *remembered[gpu.address]} & present
            found.append(dataclasses.replace(
                gpu, nvlink_peers=tuple(sorted(peers - {gpu.address})),
                nvlink_open=reason if is_open else '',
                problems=problems[gpu.address].all()))
        return tuple(found)

    def _open_reason(self) -> str:
        """Why the NVSwitches do not keep guests apart; empty if they do.

        Only the modes 1 and 2 start with routing that prevents communication
        between GPUs ("Virtualization Models" in the fabric manager's user
        guide).
        """
        try:
            mode = fabric_config.read(self._fabric_config).mode
        except exception.FabricError as error:
            return f'FABRIC_MODE is not known: {error}'
        return ('FABRIC_MODE is 0' if mode is model.FabricMode.BARE_METAL
                else '')

    def _may_be_on_switches(self, gpu: model.Gpu, has_ends: bool) -> bool:
        """Whether a GPU may be on NVSwitches that no active NVLink shows."""
        record = (None if gpu.recorded_at is None
                  else self._records.board(gpu.address))
        if record is not None:
            return record.module is not None and (
                record.on_switches or not record.nvlink_peers)
        return self._bus.has_nvswitches and not has_ends


def _is_nvidias(gpu: model.Gpu) -> bool:
    return gpu.physfn is None and gpu.driver == whole.NVIDIA
