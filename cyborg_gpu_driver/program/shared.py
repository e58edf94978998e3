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

"""GPU instances below vGPUs, of which one may carry several.

The driver puts a vGPU on any instance of its profile that has room for it,
not always on the one that it was meant for, and of an mdev it never tells.
So an entry of the journal says which instance it keeps alive; an instance
goes when no entry is left that does.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program import differences
from cyborg_gpu_driver.program import hardware
from cyborg_gpu_driver.program import journal


def created(entry: journal.Entry) -> model.GpuInstance:
    """The instance of an entry, as NVML has just given it back."""
    return model.GpuInstance(entry.placement, entry.profile_id,
                             entry.instance_id)


class SharedInstances:
    """The instances of what is bound on one machine.

    To be used under the GPU's lock.
    """

    def __init__(self, tools: hardware.Hardware, records: journal.Journal):
        self._tools = tools
        self._journal = records

    def settle(self, entry: journal.Entry
               ) -> tuple[journal.Entry, int | None]:
        """Give a new vGPU's entry the instance that it really lies on.

        If that is another of ours, the one that was to be its own goes
        again. If it is a stranger's, ours stays the entry's, to be returned
        with it. Where the driver does not tell, nothing is done.

        :returns: the entry, and the instance's id as the driver tells it.
        :raises NvmlError, SysfsError: if the hardware refused something.
        """
        found = self._tools.instance_under(entry)
        if found is None or found == entry.instance_id:
            return entry, found
        for other in self._others(entry):
            if (other.instance_id == found
                    and self._tools.own_instance(other) == found):
                if not self._sharers(entry):
                    self._tools.remove_instance(entry)
                return dataclasses.replace(
                    entry, placement=other.placement,
                    instance_id=found), found
        return entry, found

    def remove(self, entry: journal.Entry,
               read: Callable[[model.PciAddress], model.Gpu]
               ) -> spec.MigInstanceSpec | None:
        """Destroy the instance of an entry, if no other keeps it alive.

        Where NVML says that it is in use, it is found out by whom. Nothing
        is destroyed to find that out: compute instances go only where
        nothing uses the instance that they are in.

        :param entry: its vGPU is gone.
        :param read: reads a GPU again.
        :returns: what was destroyed, which may have been another's before;
            None if nothing was.
        :raises NvmlError: IN_USE while something runs on it, or may.
        :raises SysfsError: if who uses it cannot be found out.
        """
        if (entry.placement is None or self._tools.is_past(entry)
                or self._sharers(entry)):
            return None
        try:
            self._tools.remove_instance(entry)
        except exception.NvmlError as error:
            if error.symbol != 'IN_USE':
                raise
            return self._remove_used(entry, read, error)
        return entry.instance

    def _remove_used(self, entry, read, error):
        number = self._tools.own_instance(entry)
        if number is None:
            raise error
        used = self._tools.usage(read(entry.gpu), number)
        for other in self._finished(entry):
            if differences.vgpu_name(other) in used.vgpus[number]:
                # It runs on ours, so ours may have sat on its.
                moved = dataclasses.replace(
                    entry, placement=other.placement,
                    instance_id=other.instance_id)
                self._journal.put(moved, dataclasses.replace(
                    other, placement=entry.placement, instance_id=number))
                return self.remove(moved, read)
        if number in used.busy:
            raise error
        if not used.has_compute:
            return self._exchange(entry, number, used.busy, error)
        if used.reason:
            raise error
        self._tools.clear_instance(entry.gpu, number)
        self._tools.remove_instance(entry)
        return entry.instance

    def _exchange(self, entry, number, busy, error):
        """Give the instance to whose vGPU is on it, and remove theirs.

        NVML says that there is a vGPU and nobody tells whose: its guest
        does not run. Then NVML refuses each instance that has a vGPU, and
        the one that it does not refuse is empty. Where there are vGPUs on
        each of the others' too, one of those that are taken to share an
        instance is on ours; which, nobody tells.
        """
        groups = collections.defaultdict(list)
        for other in self._finished(entry):
            if other.instance_id not in busy:
                groups[_place(other)].append(other)
        ours = {'placement': entry.placement, 'instance_id': number}
        for others in groups.values():
            try:
                self._tools.remove_instance(others[0])
            except exception.NvmlError as refused:
                if refused.symbol != 'IN_USE':
                    raise
                continue
            self._journal.put(
                dataclasses.replace(
                    entry, placement=others[0].placement,
                    instance_id=others[0].instance_id),
                *(dataclasses.replace(other, **ours) for other in others))
            return others[0].instance
        for others in groups.values():
            if len(others) > 1:
                self._journal.put(dataclasses.replace(others[-1], **ours))
                return None
        raise error

    def _finished(self, entry):
        """The others whose bind has ended."""
        return [other for other in self._others(entry)
                if other.phase is not journal.Phase.BINDING]

    def _others(self, entry):
        """Other entries on instances of the same profile."""
        return [other for other in self._journal.entries(entry.gpu)
                if other.handle != entry.handle
                and other.placement is not None
                and other.profile_id == entry.profile_id]

    def _sharers(self, entry):
        return [other for other in self._others(entry)
                if _place(other) == _place(entry)]


def _place(entry):
    return entry.placement, entry.instance_id
