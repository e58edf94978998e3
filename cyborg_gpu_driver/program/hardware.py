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

"""Making and unmaking what one journal entry names.

Each function is idempotent: it looks before it acts, so that it can finish
what a dead process began.
"""

from __future__ import annotations

import dataclasses
import errno

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import privileged

LOG = logging.getLogger(__name__)

_MDEVS = ('bus', 'mdev', 'devices')
_GONE = frozenset({'NOT_FOUND', 'NOT_SUPPORTED'})
"""NOT_SUPPORTED: MIG mode is off, so no instance is left (NVML guide)."""

_REFUSALS = frozenset({'INSUFFICIENT_RESOURCES', 'INVALID_ARGUMENT',
                       'NOT_SUPPORTED', 'NO_PERMISSION', 'UNINITIALIZED'})


def was_refused(error: exception.NvmlError) -> bool:
    """Whether NVML says by this error that it made no instance.

    Any other error leaves open whether there is one, as does any error of
    the calls that follow the creation.
    """
    return (error.call.startswith('nvmlDeviceCreateGpuInstance')
            and error.symbol in _REFUSALS)


class Hardware:
    """The changes of bind and unbind on one machine.

    :param machine: where state is read; changes go through
        :mod:`cyborg_gpu_driver.program.privileged`.
    """

    def __init__(self, machine: platform.Platform):
        self._machine = machine

    def instance_ids(self, address: model.PciAddress,
                     profile: model.GpuInstanceProfile) -> tuple[int, ...]:
        """Ids of the live instances of a profile (one NVML call)."""
        nvml = self._machine.nvml
        return tuple(nvml.gpu_instance_ids(
            nvml.device(address), profile.profile_id,
            profile.max_instances))

    def make_instance(self, entry: journal.Entry) -> journal.Entry:
        """Cut the entry's instance at its placement.

        :returns: the entry with the instance's id.
        :raises NvmlError: as NVML refused it.
        :raises BindRefused: if the driver put it somewhere else.
        """
        instance_id, start, size = privileged.create_gpu_instance(
            str(entry.gpu), entry.profile_id, entry.placement.start,
            entry.placement.size)
        made = dataclasses.replace(entry, instance_id=instance_id)
        if model.Placement(start, size) != entry.placement:
            raise exception.BindRefused(
                handle=entry.handle, asked_type=entry.mdev_type,
                address=entry.gpu, reason=f'asked for {entry.placement}, '
                f'the driver gave {start}:{size}')
        return made

    def make_mdev(self, entry: journal.Entry) -> model.Mdev:
        """Create the entry's mdev and read it back.

        :raises SysfsError: as the kernel refused it.
        :raises BindRefused: if it is not what was asked for.
        """
        privileged.create_mdev(str(entry.function), entry.mdev_type,
                               entry.handle)
        mdev_type = self.mdev_type(entry.handle)
        if mdev_type != entry.mdev_type:
            raise exception.BindRefused(
                handle=entry.handle, asked_type=entry.mdev_type,
                address=entry.function,
                reason=f'the kernel made an mdev of type {mdev_type}')
        return model.Mdev(entry.handle, entry.function, entry.mdev_type)

    def mdev_type(self, handle: str) -> str | None:
        """Type of the mdev with this UUID, None if there is none."""
        return self._machine.sysfs.link_name(*_MDEVS, handle, 'mdev_type')

    def remove_mdev(self, handle: str) -> None:
        """Remove the mdev of a handle; does nothing if it is gone.

        :raises SysfsError: EBUSY while a guest holds it.
        """
        if not self._machine.sysfs.exists(*_MDEVS, handle):
            return
        try:
            privileged.remove_mdev(handle)
        except exception.SysfsError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    def remove_instance(self, entry: journal.Entry) -> None:
        """Destroy the entry's instance; does nothing if it is gone.

        Instance ids are reused, so the instance with the entry's id is
        destroyed only if it lies where the entry's was cut.

        :raises NvmlError: IN_USE while something runs on it.
        """
        instance_id = self._own_instance(entry)
        if instance_id is None:
            return
        try:
            privileged.destroy_gpu_instance(str(entry.gpu), instance_id)
        except exception.NvmlError as error:
            if error.symbol not in _GONE:
                raise

    def _own_instance(self, entry):
        """Id of the instance that the entry made, None if there is none.

        A process that died while it cut one has not written the id: then it
        is the one at the entry's placement that was not there before.
        """
        if entry.placement is None:
            return None
        nvml = self._machine.nvml
        try:
            live = nvml.gpu_instances(nvml.device(entry.gpu),
                                      entry.profile_id)
        except exception.NvmlError as error:
            if error.symbol in _GONE:
                return None
            raise
        for instance in live:
            if instance.placement != entry.placement:
                continue
            if (entry.instance_id == instance.instance_id
                    or entry.instance_id is None
                    and instance.instance_id not in entry.foreign_ids):
                return instance.instance_id
        return None
