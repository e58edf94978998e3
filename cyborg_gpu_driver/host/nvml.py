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


"""The session with NVIDIA's management library (NVML), through pynvml.

The only module that calls pynvml outside the simulator. A session is opened
at its first call, in the process that makes it: the agent forks after it
has made its drivers, and a session does not survive a fork.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pynvml
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import nvml_library

LOG = logging.getLogger(__name__)

INIT = 'nvmlInit'
"""The ``call`` of an error that says that there is no session."""

INSTANCE_LIMIT = 64
"""Room in a list of instances. nvmlDeviceGetGpuInstances writes as many as
there are without asking for the size of the array; no GPU has more than its
grid has units, and the largest known grid has twelve."""

_NO_SESSION = frozenset({'UNINITIALIZED', 'DRIVER_NOT_LOADED'})


@dataclasses.dataclass
class _Open:
    """What one open session holds."""

    process: int
    generation: int
    devices: dict[model.PciAddress, Any] = dataclasses.field(
        default_factory=dict)
    instance_ids: dict[int, int] = dataclasses.field(default_factory=dict)
    """Id of each GPU instance by the address in its handle."""


class NvmlSession:
    """One session with NVML, shared by the threads of a process.

    :param wsl_library: tried where the loader knows no library.
    :param load: loads a library by path, :class:`ctypes.CDLL`.
    :param wsl: whether this is WSL 2; None finds out.
    """

    def __init__(self, wsl_library: str = nvml_library.WSL_PATH,
                 load: Callable[[str], Any] = ctypes.CDLL,
                 wsl: bool | None = None):
        self._wsl_library = wsl_library
        self._load = load
        self._wsl = wsl
        self._mutex = threading.Lock()
        self._session: _Open | None = None
        self._generation = 0
        self._said: str | None = None
        self._library_missing = False
        _SESSIONS.add(self)

    # The session itself

    @property
    def generation(self) -> int:
        """A number that grows each time the session is opened anew.

        What was learnt in an earlier generation (handles, static facts)
        may be wrong in this one: the driver may have been replaced.
        """
        return self._generation

    @property
    def library_missing(self) -> bool:
        """Whether the last try found no NVML library at all."""
        return self._library_missing

    @property
    def wsl(self) -> bool:
        """Whether this is WSL 2: Microsoft names its kernel's release."""
        if self._wsl is None:
            self._wsl = 'microsoft' in os.uname().release.lower()
        return self._wsl

    def problem(self) -> str | None:
        """Open the session if it is not; why it cannot be, for people.

        No library and no driver are states of a healthy machine, logged
        once and tried again at each call.
        """
        try:
            self._opened()
        except exception.NvmlError as error:
            return nvml_library.reason(error)
        return None

    def reset(self) -> None:
        """Close the session; the next call opens a new one.

        For a driver that was reloaded and a GPU that was reset or lost:
        their handles are dead. Never raises.
        """
        self._close(self._session)

    def call(self, name: str, *args: Any) -> Any:
        """Call a function of pynvml.

        :param name: such as ``nvmlDeviceGetName``.
        :raises NvmlError: FUNCTION_NOT_FOUND where pynvml or the library is
            too old for it; NOT_SUPPORTED where the GPU cannot; and so on.
        """
        session = self._opened()
        function = getattr(pynvml, name, None)
        if function is None:
            raise nvml_library.error(
                name, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        try:
            return function(*args)
        except pynvml.NVMLError as error:
            wrapped = nvml_library.error(name, error.value)
            if wrapped.symbol in _NO_SESSION:
                self._close(session)
            raise wrapped from error

    def _close(self, session):
        """Close a session unless another thread has done so already."""
        with self._mutex:
            if session is None or self._session is not session:
                return
            self._session = None
            if session.process != os.getpid():
                # nvmlShutdown in a forked child would end the parent's
                # session, whose open files the child has inherited.
                return
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as error:
                LOG.debug('nvmlShutdown: %s',
                          nvml_library.symbol(error.value))

    def _opened(self) -> _Open:
        session = self._session
        if session is not None and session.process == os.getpid():
            return session
        with self._mutex:
            session = self._session
            if session is not None and session.process == os.getpid():
                return session
            try:
                nvml_library.initialise(self._wsl_library, self._load)
            except pynvml.NVMLError as error:
                self._session = None
                raise self._refused(error.value) from error
            self._library_missing = False
            self._said = None
            self._generation += 1
            self._session = _Open(os.getpid(), self._generation)
            return self._session

    def _refused(self, code):
        error = nvml_library.error(INIT, code)
        self._library_missing = nvml_library.is_missing(error)
        reason = nvml_library.reason(error)
        if reason != self._said:
            self._said = reason
            LOG.log(logging.INFO if nvml_library.is_usual(error)
                    else logging.WARNING, 'NVML takes no part: %s', reason)
        return error

    def _forget_after_fork(self):
        self._mutex = threading.Lock()
        self._session = None

    # The machine

    def driver_version(self) -> str:
        """Version of the kernel driver (nvmlSystemGetDriverVersion)."""
        return nvml_library.text(self.call('nvmlSystemGetDriverVersion'))

    def device_count(self) -> int:
        """How many GPUs NVML knows (nvmlDeviceGetCount)."""
        return self.call('nvmlDeviceGetCount')

    def device(self, address: model.PciAddress) -> Any:
        """Handle of the GPU at ``address``, asked for once a session.

        :raises NvmlError: NOT_FOUND if NVML has none there.
        """
        session = self._opened()
        handle = session.devices.get(address)
        if handle is None:
            handle = self.call('nvmlDeviceGetHandleByPciBusId', str(address))
            session.devices[address] = handle
        return handle

    def forget(self, address: model.PciAddress) -> None:
        """Ask for the handle of the GPU at ``address`` again next time."""
        session = self._session
        if session is not None:
            session.devices.pop(address, None)

    def addresses(self) -> tuple[model.PciAddress, ...]:
        """Addresses of the GPUs that NVML knows and can open.

        Two calls a GPU: for where sysfs does not tell.
        """
        found = []
        for index in range(self.device_count()):
            try:
                handle = self.call('nvmlDeviceGetHandleByIndex', index)
                info = self.call('nvmlDeviceGetPciInfo', handle)
            except exception.NvmlError as error:
                LOG.debug('GPU %d: %s', index, error)
                continue
            found.append(model.PciAddress.parse(nvml_library.text(info.busId)))
        return tuple(sorted(found))

    # MIG

    def mig_mode(self, device: Any) -> tuple[bool, bool]:
        """Current and pending MIG mode.

        :raises NvmlError: NOT_SUPPORTED if the GPU has no MIG.
        """
        current, pending = self.call('nvmlDeviceGetMigMode', device)
        return bool(current), bool(pending)

    def set_mig_mode(self, device: Any, enable: bool) -> str:
        """Set the MIG mode, which may be pending only.

        :returns: activation status, ``SUCCESS``, ``RESET_REQUIRED`` or
            ``IN_USE``; read :meth:`mig_mode` again in any case.
        :raises NvmlError: NO_PERMISSION, NOT_SUPPORTED.
        """
        activation = self.call('nvmlDeviceSetMigMode', device, int(enable))
        return nvml_library.symbol(activation)

    def gpu_instances(self, device: Any, profile_id: int,
                      limit: int = INSTANCE_LIMIT
                      ) -> tuple[model.GpuInstance, ...]:
        """Live GPU instances of a profile: one call and one an instance.

        :param limit: the profile's ``max_instances``, where it is known.
        :raises NvmlError: NOT_SUPPORTED if MIG mode is off.
        """
        return tuple(sorted(
            self._instance(handle)
            for handle in self._instance_handles(device, profile_id, limit)))

    def gpu_instance_ids(self, device: Any, profile_id: int,
                         limit: int = INSTANCE_LIMIT) -> tuple[int, ...]:
        """Ids of the live GPU instances of a profile.

        One call where this session has met them all before. An instance
        that another process has put in the place of one that it destroyed
        may have the handle of the old one, and then comes with its id: use
        :meth:`gpu_instances` to tell what is to be destroyed.
        """
        known = self._opened().instance_ids
        ids = []
        for handle in self._instance_handles(device, profile_id, limit):
            number = known.get(_address(handle))
            ids.append(self._instance(handle).instance_id
                       if number is None else number)
        return tuple(sorted(ids))

    def create_gpu_instance(self, device: Any, profile_id: int,
                            placement: model.Placement | None = None
                            ) -> model.GpuInstance:
        """Create a GPU instance and read it back (two calls).

        :param profile_id: the board's profile id.
        :param placement: None leaves the choice to the driver.
        :raises NvmlError: INSUFFICIENT_RESOURCES if a unit is taken,
            INVALID_ARGUMENT for a placement that the profile does not have.
        """
        if placement is None:
            handle = self.call('nvmlDeviceCreateGpuInstance', device,
                               profile_id)
        else:
            asked = pynvml.c_nvmlGpuInstancePlacement_t(
                placement.start, placement.size)
            handle = self.call('nvmlDeviceCreateGpuInstanceWithPlacement',
                               device, profile_id, ctypes.byref(asked))
        return self._instance(handle)

    def destroy_gpu_instance(self, device: Any, instance_id: int) -> None:
        """Destroy a GPU instance (two calls).

        :raises NvmlError: NOT_FOUND; NOT_SUPPORTED if MIG mode is off;
            IN_USE if it has compute instances, processes or a vGPU.
        """
        handle = self.call('nvmlDeviceGetGpuInstanceById', device,
                           instance_id)
        self.call('nvmlGpuInstanceDestroy', handle)
        self._opened().instance_ids.pop(_address(handle), None)

    def compute_instances(self, device: Any, instance_id: int
                          ) -> tuple[Any, ...]:
        """Handles of the compute instances of a GPU instance.

        :raises NvmlError: NOT_FOUND if there is no such GPU instance.
        """
        instance = self.call('nvmlDeviceGetGpuInstanceById', device,
                             instance_id)
        found = []
        for index in range(INSTANCE_LIMIT):
            try:
                info = self.call(
                    'nvmlGpuInstanceGetComputeInstanceProfileInfo', instance,
                    index, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                    1)
            except exception.NvmlError as error:
                if error.symbol == 'INVALID_ARGUMENT':
                    break
                if error.symbol == 'NOT_SUPPORTED':
                    continue
                raise
            found.extend(self._list(
                'nvmlGpuInstanceGetComputeInstances', instance, info.id,
                pynvml.c_nvmlComputeInstance_t, info.instanceCount))
        return tuple(found)

    def destroy_compute_instances(self, device: Any,
                                  instance_id: int) -> None:
        """Destroy every compute instance of a GPU instance.

        :raises NvmlError: IN_USE if a process runs on one.
        """
        for handle in self.compute_instances(device, instance_id):
            self.call('nvmlComputeInstanceDestroy', handle)

    def mig_uuids(self, device: Any, instance_id: int) -> tuple[str, ...]:
        """UUIDs of a GPU instance's MIG devices, one a compute instance.

        :raises NvmlError: NOT_FOUND if there is no such GPU instance.
        """
        return tuple(sorted(
            nvml_library.text(self.call('nvmlDeviceGetUUID', self.call(
                'nvmlComputeInstanceGetInfo', handle).device))
            for handle in self.compute_instances(device, instance_id)))

    def _instance_handles(self, device, profile_id, limit):
        return self._list('nvmlDeviceGetGpuInstances', device, profile_id,
                          pynvml.c_nvmlGpuInstance_t, limit)

    def _list(self, name, owner, profile_id, kind, limit):
        handles = (kind * max(limit, INSTANCE_LIMIT))()
        count = ctypes.c_uint(0)
        self.call(name, owner, profile_id, handles, ctypes.byref(count))
        return [handles[index] for index in range(count.value)]

    def _instance(self, handle):
        info = self.call('nvmlGpuInstanceGetInfo', handle)
        self._opened().instance_ids[_address(handle)] = info.id
        return model.GpuInstance(
            placement=model.Placement(info.placement.start,
                                      info.placement.size),
            profile_id=info.profileId, instance_id=info.id)


_SESSIONS: weakref.WeakSet[NvmlSession] = weakref.WeakSet()


def _after_fork():
    # A lock that another thread held while this process was forked would
    # stay locked here for good.
    for session in list(_SESSIONS):
        session._forget_after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _address(handle):
    return ctypes.cast(handle, ctypes.c_void_p).value
