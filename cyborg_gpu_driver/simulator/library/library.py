# SPDX-License-Identifier: Apache-2.0

"""An object that replaces ``pynvml.nvmlLib``: NVML's C functions.

Attributes are callables named after C symbols. They take the arguments that
pynvml passes, fill the caller's ctypes structures and return
``nvmlReturn_t``. A symbol that does not exist raises AttributeError, as with
ctypes.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module
from cyborg_gpu_driver.simulator.library import device as library_device
from cyborg_gpu_driver.simulator.library import events as library_events
from cyborg_gpu_driver.simulator.library import mig as library_mig
from cyborg_gpu_driver.simulator.library import telemetry as library_telemetry
from cyborg_gpu_driver.simulator.library import vgpu as library_vgpu

TOPICS = (library_device, library_events, library_mig, library_telemetry,
          library_vgpu)

_LOOK_AGAIN = 5000
"""In microseconds. Another process cannot wake a waiting process."""
_sleep = ctypes.CDLL(None).usleep

Refused = faults.Refused


class Library:
    """NVML as one process sees it: a session with its handles."""

    def __init__(self, machine):
        self.machine = machine
        self.handles = abi.Handles()
        self.events = abi.Objects(0x7f5300000000)
        self._sessions = 0
        self._hanging: list[str] = []
        """The calls of this process that do not return now."""
        self._process = None
        self._boot = None

    def __getattr__(self, name):
        try:
            symbol = abi.TABLE[name]
        except KeyError:
            raise AttributeError(name) from None
        # Callers may set ``restype``, as with ctypes.
        function = functools.partial(self.call, name, symbol)
        setattr(self, name, function)
        return function

    def call(self, name: str, symbol: abi.Symbol, *arguments: Any) -> Any:
        """Call a C function as one operation on the machine."""
        machine = self.machine
        machine.faults.wait(name)
        if name == 'nvmlShutdown' or symbol.before is not None:
            self._hang(name, arguments)
        if symbol.before is not None:
            symbol.before(self, *arguments)
        while True:
            with machine.operation(symbol.writes):
                if not self._is_hung(name, arguments):
                    return self._answer(name, symbol, arguments)
            self._hang(name, arguments)

    def _answer(self, name, symbol, arguments):
        self.machine.calls[name] += 1
        fault = None
        try:
            fault = self.machine.faults.symbol(
                name, self._address(name, arguments))
            if fault and not fault.after:
                return fault.code
            self._check(name, symbol, arguments)
            answer = symbol.function(self, *arguments)
        except Refused as refused:
            answer = refused.code
        if fault:
            return fault.code
        return pynvml.NVML_SUCCESS if answer is None else answer

    def _hang(self, name, arguments):
        """Wait until the GPU that a call is about answers.

        For nvmlShutdown, wait until all other calls have returned. Callers
        must not rely on whether the real nvmlShutdown waits or removes what
        the other calls use.
        """
        if name == 'nvmlShutdown':
            while self._hanging:
                _sleep(_LOOK_AGAIN)
        elif self._is_hung(name, arguments):
            self._hanging.append(name)
            try:
                while self._is_hung(name, arguments):
                    _sleep(_LOOK_AGAIN)
            finally:
                self._hanging.remove(name)

    def _is_hung(self, name, arguments):
        machine = self.machine
        with machine.operation():
            hung = [gpu.address for gpu in machine.gpus if gpu.state.hung]
            return bool(hung) and self._address(name, arguments) in hung

    def _address(self, name, arguments):
        """The GPU that a call is about, for faults limited to one GPU."""
        if name.startswith('nvmlDeviceGetHandleBy'):
            gpu = library_device.asked_for(self, name, arguments[0])
            return gpu and gpu.address
        for argument in arguments:
            key = self.handles.key(abi.handle(argument))
            if key is not None:
                return key[1]
        return None

    def _check(self, name, symbol, arguments):
        if name == 'nvmlInitWithFlags':
            return
        if not self.open:
            raise Refused(pynvml.NVML_ERROR_UNINITIALIZED)
        if (symbol.privileged and not self.machine.privileged
                and not self._shows_instances(symbol, arguments)):
            raise Refused(pynvml.NVML_ERROR_NO_PERMISSION)

    def _shows_instances(self, symbol, arguments):
        """Whether the capability ``mig/config`` is enough for a call.

        It is enough for the calls that read GPU instances of a GPU in MIG
        mode: these need root but change nothing.
        """
        if symbol.writes or not self.machine.allowed:
            return False
        address = self._address('', arguments)
        return (address is not None
                and self.machine.gpu(address).state.mig)

    @property
    def open(self) -> bool:
        """Whether there is a session. Use it only within an operation."""
        return (self._sessions > 0 and self._process == os.getpid()
                and self._boot == self.machine.state.boot)

    def start(self, attach: bool) -> None:
        """Start a session (nvmlInit), and open the device nodes of all GPUs.

        Sessions nest. A fork or a reboot ends all sessions.
        """
        state = self.machine.state
        if state.nvml:
            raise Refused(state.nvml)
        here = (os.getpid(), state.boot)
        if here != (self._process, self._boot):
            self._sessions = 0
            self.handles.clear()
            self.events.clear()
            self.machine.opens.close()
        self._process, self._boot = here
        if attach and not self._sessions:
            # Seen on an H100 and an H200, driver 580.159.04.
            for gpu in self.visible():
                if not (gpu.unreachable or gpu.refused):
                    self.machine.opens.open(gpu)
        self._sessions += 1

    def stop(self) -> None:
        """End a session (nvmlShutdown).

        The last session closes all handles and device nodes.
        """
        self._sessions -= 1
        if not self._sessions:
            self.handles.clear()
            self.events.clear()
            self.machine.opens.close()

    def after_reboot(self) -> Library:
        """Return the library of a process that starts after a reboot.

        It does not reuse the handles of this library. Reuse would hide that
        a caller has kept a handle too long.
        """
        library = Library(self.machine)
        library.handles, library.events = self.handles, self.events
        return library

    def visible(self) -> list[gpu_module.Gpu]:
        """The GPUs that NVML counts: those bound to NVIDIA's driver."""
        return [gpu for gpu in self.machine.gpus
                if gpu.bound and not gpu.state.removing]

    def handle_of(self, gpu: gpu_module.Gpu) -> int:
        """Return a handle of a GPU, and open the GPU's device node."""
        if gpu.unreachable:
            raise Refused(pynvml.NVML_ERROR_GPU_IS_LOST)
        if gpu.refused:
            raise Refused(pynvml.NVML_ERROR_UNKNOWN)
        self.machine.opens.open(gpu)
        return self._value('gpu', gpu.address, gpu.state.epoch)

    def instance_handle(self, gpu: gpu_module.Gpu, instance_id: int) -> int:
        return self._value('instance', gpu.address, instance_id,
                           gpu.state.instances[instance_id].serial)

    def compute_handle(self, gpu: gpu_module.Gpu, instance_id: int,
                       compute_id: int, kind: str = 'compute') -> int:
        """Handle of a compute instance, or of its device with ``mig``."""
        compute = gpu.state.instances[instance_id].compute[compute_id]
        return self._value(kind, gpu.address, instance_id, compute_id,
                           compute.serial)

    def _value(self, *key):
        return self.handles.value(key, lambda other: not self._lives(other))

    def _lives(self, key):
        """Whether the object that a key names still exists."""
        state = self.machine.gpu(key[1]).state
        if key[0] == 'gpu':
            return state.epoch == key[2] and state.driver == 'nvidia'
        instance = state.instances.get(key[2])
        if key[0] == 'instance':
            return instance is not None and instance.serial == key[3]
        compute = instance and instance.compute.get(key[3])
        return compute is not None and compute.serial == key[4]

    def device(self, argument: Any
               ) -> tuple[gpu_module.Gpu, tuple[int, int] | None]:
        """The GPU of a device handle, and the ids of a MIG device."""
        key = self._key(argument, 'gpu', 'mig')
        gpu = self.machine.gpu(key[1])
        return gpu, None if key[0] == 'gpu' else (key[2], key[3])

    def gpu(self, argument: Any) -> gpu_module.Gpu:
        """The GPU of a handle, which must not be a MIG device's handle."""
        gpu, ids = self.device(argument)
        if ids is not None:
            raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return gpu

    def instance(self, argument: Any) -> tuple[
            gpu_module.Gpu, int, state_module.Instance]:
        """The GPU, the id and the state of a handle's GPU instance."""
        key = self._key(argument, 'instance')
        gpu = self.machine.gpu(key[1])
        return gpu, key[2], gpu.state.instances[key[2]]

    def compute(self, argument: Any) -> tuple[gpu_module.Gpu, int, int]:
        """The GPU and both instance ids of a handle's compute instance."""
        key = self._key(argument, 'compute')
        return self.machine.gpu(key[1]), key[2], key[3]

    def _key(self, argument, *kinds):
        """The key of a handle, which must be of these kinds and alive."""
        key = self.handles.key(abi.handle(argument))
        if key is None or key[0] not in kinds:
            raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if self.machine.gpu(key[1]).unreachable:
            raise Refused(pynvml.NVML_ERROR_GPU_IS_LOST)
        if not self._lives(key):
            raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return key


# NVML's calls about the session and the system.

@abi.symbol('nvmlInitWithFlags')
def init_with_flags(library, flags):
    library.start(attach=not abi.number(flags)
                  & pynvml.NVML_INIT_FLAG_NO_ATTACH)


@abi.symbol('nvmlShutdown')
def shutdown(library):
    library.stop()


@abi.symbol('nvmlSystemGetDriverVersion')
def driver_version(library, buffer, length):
    abi.put_text(buffer, abi.number(length),
                 library.machine.host.driver_version)


@abi.symbol('nvmlDeviceGetCount_v2')
def device_count(library, count):
    abi.put(count, len(library.visible()))
