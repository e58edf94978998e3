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

"""What was reported before, so that nothing in use is ever withdrawn.

Cyborg deletes what a report leaves out, in use or not. Each report is
therefore held against the last one; and facts that only NVML knows stay
known while a server holds the GPU and NVML cannot see it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver import fields
from cyborg_gpu_driver.host import drivers
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.report import names
from cyborg_gpu_driver.report import values

_FACTS = {'model': fields.text, 'architecture': fields.text,
          'uuid': fields.text, 'serial': fields.text,
          'memory_mib': fields.number}
"""Fields of a GPU that NVML alone knows and that Cyborg compares, and what
reads each."""


@dataclasses.dataclass(frozen=True)
class Provider:
    """A provider as it was last reported."""

    resource_class: str
    total: int
    handles: str
    """Digest of the set of attach handles."""


@dataclasses.dataclass(frozen=True)
class Remembered:
    """A GPU as it was last reported."""

    device_id: str
    mode: str
    facts: Mapping[str, str | int]
    providers: Mapping[str, Provider]
    """By provider UUID."""


def complete(gpu: model.Gpu, known: Remembered | None) -> model.Gpu:
    """``gpu`` with the facts that NVML told when it last saw it.

    Facts of another board in the same slot are not taken over.
    """
    if known is None or known.device_id != gpu.device_id or (
            gpu.uuid is not None and gpu.uuid != known.facts.get('uuid')):
        return gpu
    return dataclasses.replace(gpu, **{
        name: value for name, value in known.facts.items()
        if getattr(gpu, name) is None})


def untrusted(gpu: model.Gpu, known: Remembered | None,
              library_missing: bool) -> str:
    """Why nothing may be concluded from this reading of ``gpu``; or ``''``.

    :param library_missing: this machine has no NVML library.
    """
    if gpu.problems:
        return '; '.join(gpu.problems)
    if (gpu.visible_to_nvml or gpu.released
            or gpu.driver != drivers.NVIDIA):
        return ''
    if library_missing and (known is None or 'uuid' not in known.facts):
        return ''
    return 'the nvidia driver is bound and NVML does not show the GPU'


def remember(gpu: model.Gpu, device: values.ReportedDevice,
             before: Remembered | None = None, left: Iterable[str] = ()
             ) -> Remembered:
    """What to keep of a GPU and the device that is reported for it.

    :param before: what was kept of it before.
    :param left: UUIDs of providers from there that this report withdraws
        and that Placement still has. As long as there are any, the GPU has
        the mode that it had.
    """
    leftover = leaving(before, left).providers if before else {}
    mode = (device.deployables[0].mode if device.deployables
            else policy.Mode.OFF)
    return Remembered(
        device_id=gpu.device_id,
        mode=before.mode if leftover else mode.value,
        facts={name: getattr(gpu, name) for name in _FACTS
               if getattr(gpu, name) is not None},
        providers={**leftover, **{
            item.provider_uuid: _provider(item)
            for item in device.deployables}})


def leaving(before: Remembered, left: Iterable[str]) -> Remembered:
    """What to keep of a GPU of which nothing is reported any more.

    :param left: as of :func:`remember`.
    """
    return dataclasses.replace(before, providers={
        uuid: before.providers[uuid] for uuid in left})


def withdrawn(known: Remembered, device: values.ReportedDevice | None
              ) -> tuple[str, ...]:
    """Providers that this report would delete or give other handles.

    :param device: what is to be reported; None if nothing is.
    """
    now = {item.provider_uuid: _provider(item)
           for item in (device.deployables if device else ())}
    return tuple(sorted(uuid for uuid, provider in known.providers.items()
                        if now.get(uuid) != provider))


def to_content(memory: Mapping[model.PciAddress, Remembered]) -> dict:
    """For :func:`cyborg_gpu_driver.durable.write`."""
    return {str(address): dataclasses.asdict(known)
            for address, known in memory.items()}


def from_content(content: Mapping) -> dict[model.PciAddress, Remembered]:
    """The other way round.

    :raises KeyError, TypeError, ValueError, AttributeError,
        InvalidPciAddress: if it is not that.
    """
    return {
        model.PciAddress.parse(address): Remembered(
            device_id=fields.text(item['device_id']),
            mode=fields.text(item['mode']),
            facts={name: read(item['facts'][name])
                   for name, read in _FACTS.items()
                   if name in item['facts']},
            providers={uuid: Provider(
                fields.text(provider['resource_class']),
                fields.number(provider['total']),
                fields.text(provider['handles']))
                for uuid, provider in item['providers'].items()})
        for address, item in content.items()}


def _provider(deployable: values.ReportedDeployable) -> Provider:
    return Provider(deployable.resource_class, deployable.num_accelerators,
                    _digest(item.attach_info for item in deployable.handles))


def _digest(infos: Iterable[str]) -> str:
    return names.digest('\n'.join(sorted(infos)))
