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

"""Remember the last report, so that nothing in use is ever withdrawn.

Cyborg deletes what a report leaves out, in use or not. So each report is
compared with the last one. Facts that only NVML knows are kept while a server
holds the GPU and NVML cannot see it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from cyborg_gpu_driver.host.snapshot import drivers
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.report.content import values

_FACTS = tuple(field.name for field in
               dataclasses.fields(gpu_record.ReportedFacts))


def complete(gpu: model.Gpu, known: gpu_record.Reported | None) -> model.Gpu:
    """``gpu`` with the facts that NVML told when it last saw the GPU.

    Facts of another board in the same slot are not used.
    """
    if known is None or known.device_id != gpu.device_id or (
            gpu.uuid is not None and gpu.uuid != known.facts.uuid):
        return gpu
    return dataclasses.replace(gpu, **{
        name: getattr(known.facts, name) for name in _FACTS
        if getattr(gpu, name) is None})


def untrusted(gpu: model.Gpu, known: gpu_record.Reported | None,
              library_missing: bool) -> str:
    """Why this reading of ``gpu`` is not reliable; empty if it is.

    :param library_missing: whether this machine has no NVML library.
    """
    if gpu.problems:
        return '; '.join(gpu.problems)
    if gpu.visible_to_nvml or gpu.driver != drivers.NVIDIA:
        return ''
    if library_missing and (known is None or known.facts.uuid is None):
        return ''
    return 'the nvidia driver is bound, but NVML does not list the GPU'


def is_unread(state_path: str, host: model.Host, gpu: model.Gpu) -> bool:
    """Whether nothing can be bound on a GPU, because it cannot be read.

    :param state_path: ``[gpu] state_path``.
    """
    return bool(untrusted(
        gpu, store.of(state_path).peek(gpu.address).reported,
        host.library_missing))


def remember(gpu: model.Gpu, device: values.ReportedDevice,
             before: gpu_record.Reported | None = None,
             left: Iterable[str] = ()) -> gpu_record.Reported:
    """What to remember about a GPU and the device that is reported for it.

    :param before: what was remembered of the GPU before.
    :param left: UUIDs of providers in ``before`` that this report withdraws
        and that Placement still has. As long as there are any, the GPU keeps
        the mode in ``before``.
    """
    mode = _mode(device).value
    leftover = leaving(before, left).providers if before else {}
    if before and leftover:
        mode = before.mode
    return gpu_record.Reported(
        device_id=gpu.device_id,
        mode=mode,
        facts=gpu_record.ReportedFacts(**{
            name: getattr(gpu, name) for name in _FACTS}),
        providers={**leftover, **{
            item.provider_uuid: _provider(item)
            for item in device.deployables}})


def _mode(device: values.ReportedDevice) -> policy.Mode:
    modes = {deployable.mode for deployable in device.deployables}
    if len(modes) > 1:
        return policy.Mode.AUTO
    return modes.pop() if modes else policy.Mode.OFF


def leaving(before: gpu_record.Reported, left: Iterable[str]
            ) -> gpu_record.Reported:
    """What to remember about a GPU that is not reported any more.

    :param left: see :func:`remember`.
    """
    return dataclasses.replace(before, providers={
        uuid: before.providers[uuid] for uuid in left})


def withdrawn(known: gpu_record.Reported, device: values.ReportedDevice | None
              ) -> tuple[str, ...]:
    """Providers that this report would delete or give other handles.

    :param device: the device to report; None for none.
    """
    now = {item.provider_uuid: _provider(item)
           for item in (device.deployables if device else ())}
    return tuple(sorted(uuid for uuid, provider in known.providers.items()
                        if now.get(uuid) != provider))


def drained(before: gpu_record.Reported, dropped: Iterable[str]
            ) -> list[reserved.Inventory]:
    """The inventories of providers of which nothing may be promised."""
    return [reserved.Inventory(uuid, before.providers[uuid].resource_class,
                               before.providers[uuid].total,
                               before.providers[uuid].total)
            for uuid in dropped]


def _provider(deployable: values.ReportedDeployable
              ) -> gpu_record.ReportedProvider:
    return gpu_record.ReportedProvider(
        deployable.resource_class, deployable.num_accelerators,
        _digest(item.attach_info for item in deployable.handles))


def _digest(infos: Iterable[str]) -> str:
    return names.digest('\n'.join(sorted(infos)))
