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

"""The layouts that the GPUs of a host need after a reboot.

GPU instances do not survive a reboot, and on most GPUs the MIG mode does not
either. A boot configuration of the driver may create others
(RmMIGBootConfiguration in nvrm_registry.h of NVIDIA's open kernel modules,
since 570). A GPU's record keeps the layout that an operator applied. The
layouts can also be written to a file and read from one.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

_KIND = 'cyborg-gpu checkpoint'
_VERSION = 1


def saved(gpu: model.Gpu, record: gpu_record.GpuRecord, boot: str
          ) -> gpu_record.SavedLayout:
    """What to remember of a GPU.

    GPU instances that are bound to handles or were created for fixed vGPUs
    are left out: a restore of these creates them again. Instances that an
    unbind still has to destroy are left out too. But an instance that was
    created in the place of a destroyed one remains after the unbind.

    :param gpu: as it is now, with compute instances.
    :param boot: boot id of the machine.
    """
    live = gpu.mig.instances if gpu.mig else ()
    others = record.fixed.instances | {
        claim.instance for claim in record.claims
        if claim.phase is not gpu_record.Phase.UNBINDING
        or any(claim.made(instance, boot) for instance in live)}
    found = spec.layout_of(gpu)
    return gpu_record.SavedLayout(
        gpu.address, gpu.device_id, bool(gpu.sriov_numvfs),
        dataclasses.replace(found, pending=found.enabled, instances=tuple(
            item for item in found.instances if item.bare not in others)))


def remembered(state_path: str) -> tuple[gpu_record.SavedLayout, ...]:
    """The layouts in the records of a machine, by GPU."""
    return tuple(
        record.layout for record in store.of(state_path).records().values()
        if record.layout is not None)


def remember(state_path: str, layouts: Iterable[gpu_record.SavedLayout]
             ) -> None:
    """Put layouts into the records, and forget those of other GPUs.

    :raises JournalError: if a record cannot be read or written.
    """
    records = store.of(state_path)
    by_gpu = {item.gpu: item for item in layouts}
    for address in {*by_gpu, *records.addresses()}:
        records.put(address, layout=by_gpu.get(address))


def read(file: str) -> tuple[gpu_record.SavedLayout, ...]:
    """The layouts of a checkpoint file; empty without a file.

    :raises JournalError: if it cannot be read, or is another kind of file.
    """
    content = durable.read(file, _KIND, _VERSION)
    try:
        return tuple(codec.decode(gpu_record.SavedLayout, item)
                     for item in content or ())
    except (TypeError, ValueError) as error:
        raise exception.JournalError(
            path=file, reason=f'is damaged: {error!r}') from error


def write(file: str, gpus: Iterable[gpu_record.SavedLayout]) -> None:
    """Write a checkpoint file of these GPUs, replacing an existing one.

    :raises JournalError: if it cannot be written.
    """
    durable.write(os.path.abspath(file), _KIND, _VERSION, [
        codec.encode(item)
        for item in sorted(gpus, key=lambda item: item.gpu)])
