# SPDX-License-Identifier: Apache-2.0

"""The connection to NVIDIA's fabric manager, through its library libnvfm.

It does not need root: the library connects to a TCP port of the loopback
interface, or to a Unix socket if FM_CMD_UNIX_SOCKET_PATH names one ("The
Fabric Manager API Interface" in the user guide).

Every call has a deadline. All calls run in one thread (see
:mod:`cyborg_gpu_driver.host.deadline`).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.fabric import abi
from cyborg_gpu_driver.host.fabric import config as config_module
from cyborg_gpu_driver.host.snapshot import model

TIMEOUT = 30.0
"""Seconds that one call may take."""
_OWNER = 'The fabric manager'
_LOST = 'CONNECTION_NOT_VALID'
_OTHER_VERSION = 'VERSION_MISMATCH'
_REASONS = {
    'LIBRARY_NOT_FOUND': f'{abi.LIBRARY} is not installed; it is in the '
                         'package nvidia-fabricmanager-devel or '
                         'nvidia-fabricmanager-dev',
    'FUNCTION_NOT_FOUND': f'this {abi.LIBRARY} is too old for it',
    'BADPARAM': 'the partition or a virtual function does not belong to '
                'this host, or the fabric manager cannot use it',
    'GENERIC_ERROR': 'see the log of the fabric manager',
    'NOT_SUPPORTED': 'FABRIC_MODE of the fabric manager does not allow it',
    'UNINITIALIZED': 'the partition is not active',
    'TIMEOUT': 'the fabric manager could not configure a GPU or an NVSwitch '
               'in time; see its log',
    _OTHER_VERSION: f'{abi.LIBRARY} has another version than this call',
    'IN_USE': 'the partition is active, or one of its GPUs is in another '
              'active partition',
    'NOT_CONFIGURED': 'the fabric manager is still starting, or waits for '
                      'the list of active partitions after a restart',
    _LOST: 'the fabric manager cannot be reached',
    'NVLINK_ERROR': 'an NVLink of the partition has failed',
    'NOT_ANSWERING': 'the fabric manager does not answer',
}


class FabricSession:
    """One connection to the fabric manager, shared by a process's threads.

    The first call opens it. A later call opens it again if the fabric manager
    was restarted or the process has forked.
    """

    def __init__(self, config: Callable[[], config_module.Config],
                 load: Callable[[str], Any] = ctypes.CDLL,
                 timeout: float = TIMEOUT):
        self._config = config
        self._load = load
        self.timeout = timeout
        self._mutex = threading.RLock()
        self._library: Any = None
        self._handle: ctypes.c_void_p | None = None
        self._process = 0

    def partitions(self) -> tuple[model.FabricPartition, ...]:
        """Return all partitions that are supported now.

        :raises FabricError: NOT_SUPPORTED with FABRIC_MODE=0.
        """
        found = abi.stamped(abi.PartitionList)
        self._ask('fmGetSupportedFabricPartitions', found)
        return tuple(_partition(item)
                     for item in _first(found.partitions, found.count))

    def unsupported(self) -> tuple[model.FabricPartition, ...]:
        """Return the partitions that hardware errors have made unusable.

        Always empty on Hopper and later ("Getting a List of Unsupported
        Partitions" in the user guide).
        """
        found = abi.stamped(abi.UnsupportedList)
        self._ask('fmGetUnsupportedFabricPartitions', found)
        return tuple(model.FabricPartition(
            item.partition_id,
            tuple(model.FabricMember(number) for number
                  in _first(item.physical_ids, item.gpu_count)),
            supported=False)
            for item in _first(found.partitions, found.count))

    def failed_devices(self) -> tuple[str, ...]:
        """PCI addresses of GPUs and NVSwitches whose NVLinks have failed."""
        found = abi.stamped(abi.FailedDevices)
        self._ask('fmGetNvlinkFailedDevices', found)
        return tuple(item.bus_id.decode('ascii', 'replace') for item in (
            *_first(found.gpus, found.gpu_count),
            *_first(found.switches, found.switch_count)))

    def activate(self, partition_id: int) -> None:
        """Connect the whole GPUs of a partition (FABRIC_MODE=1).

        :raises FabricError: IN_USE if it is active or overlaps an active
            one; NOT_SUPPORTED in another mode; and so on.
        """
        self._change(True, 'fmActivateFabricPartition', partition_id)

    def activate_with_functions(
            self, partition_id: int,
            functions: Sequence[model.PciAddress]) -> None:
        """Connect virtual functions with vGPUs (FABRIC_MODE=2).

        :param functions: one for each GPU of the partition. Their order has
            to be the same at each activation (user guide, "Activating a GPU
            Partition with Virtual Functions").
        """
        array = (abi.PciDevice * len(functions))(*(
            abi.PciDevice(item.domain, item.bus, item.device, item.function)
            for item in functions))
        self._change(True, 'fmActivateFabricPartitionWithVFs', partition_id,
                     array, len(functions))

    def deactivate(self, partition_id: int) -> None:
        """Disconnect the GPUs of a partition. No guest may be using them.

        :raises FabricError: UNINITIALIZED if it is not active.
        """
        self._change(False, 'fmDeactivateFabricPartition', partition_id)

    def restore(self, partition_ids: Iterable[int]) -> None:
        """Tell a restarted fabric manager which partitions are active.

        A fabric manager that was started with ``--restart`` waits for this
        for 60 seconds. Pass no ids if no partition is active ("Resiliency"
        in the user guide).

        :raises FabricError: NOT_SUPPORTED if it does not wait for this.
        """
        wanted = sorted(partition_ids)
        if len(wanted) > abi.MAX_PARTITIONS:
            raise exception.InvalidValue(
                what='list of partitions', value=wanted,
                expected=f'at most {abi.MAX_PARTITIONS}')
        found = abi.stamped(abi.ActivatedList)
        found.count = len(wanted)
        found.partition_ids[:len(wanted)] = wanted
        self._ask('fmSetActivatedFabricPartitions', found)

    def _change(self, wanted: bool, name: str, partition_id: int,
                *args: Any) -> None:
        """Activate or deactivate a partition.

        If the connection was lost, the change may have taken effect.
        """
        self._ask(name, partition_id, *args, is_done=lambda: any(
            item.partition_id == partition_id and item.active is wanted
            for item in self.partitions()))

    def _ask(self, name: str, *args: Any,
             is_done: Callable[[], bool] = lambda: False) -> None:
        """Make a call, and repeat it if the connection was lost.

        :param is_done: whether the first call has taken effect all the same.
        """
        with self._mutex:
            try:
                self._once(name, *args)
            except exception.FabricError as error:
                if error.symbol != _LOST:
                    raise
                if not is_done():
                    self._once(name, *args)

    def _once(self, name: str, *args: Any) -> None:
        if self._handle is None or self._process != os.getpid():
            self._connect()
        try:
            self._call(name, self._handle, *args)
        except exception.FabricError as error:
            if error.symbol == _LOST:
                self._handle = None
            raise

    def _connect(self) -> None:
        config = self._config()
        if self._library is None:
            self._library = self._loaded()
        try:
            self._call('fmLibInit')
        except exception.FabricError as error:
            if error.symbol != 'IN_USE':
                raise
        handle = ctypes.c_void_p()
        # The structure has grown, and a library takes one version only.
        try:
            self._call('fmConnect', self._params(
                abi.ConnectParams2, config,
                address_type=abi.ADDRESS_UNIX if config.is_unix_socket
                else abi.ADDRESS_INET), handle)
        except exception.FabricError as error:
            if error.symbol != _OTHER_VERSION:
                raise
            self._call('fmConnect', self._params(abi.ConnectParams, config),
                       handle)
        self._handle, self._process = handle, os.getpid()

    def _params(self, kind: type[ctypes.Structure],
                config: config_module.Config, **more: int
                ) -> ctypes.Structure:
        params: Any = abi.stamped(kind)
        params.address = config.address.encode()
        params.timeout_ms = int(1000 * self.timeout)
        params.is_unix_socket = config.is_unix_socket
        for name, value in more.items():
            setattr(params, name, value)
        return params

    def _loaded(self) -> Any:
        try:
            return self._load(abi.LIBRARY)
        except OSError as error:
            raise _error('loading the library', 'LIBRARY_NOT_FOUND'
                         ) from error

    def _call(self, name: str, *args: Any) -> None:
        """Call one C function, and pass structures by reference."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise _error(name, 'FUNCTION_NOT_FOUND') from None
        function.argtypes = abi.FUNCTIONS[name]
        function.restype = ctypes.c_int
        passed = [ctypes.byref(arg) if _is_reference(name, arg) else arg
                  for arg in args]
        try:
            code = deadline.run(_OWNER, self.timeout, name, function, *passed)
        except exception.NvmlNotAnswering as error:
            raise _error(name, 'NOT_ANSWERING') from error
        if code != abi.SUCCESS:
            raise _error(name, abi.SYMBOLS.get(code, f'CODE_{code}'))


def _is_reference(name: str, argument: Any) -> bool:
    return (isinstance(argument, (ctypes.Structure, ctypes.Array))
            or name == 'fmConnect' and isinstance(argument, ctypes.c_void_p))


def _error(call: str, symbol: str) -> exception.FabricError:
    return exception.FabricError(
        call=call, symbol=symbol,
        reason=_REASONS.get(symbol, 'the log of the fabric manager tells '
                            'more'))


def _first(items: Any, count: int) -> list[Any]:
    """Return the used items of a C array; a wrong count does no harm."""
    return [items[index] for index in range(min(count, len(items)))]


def _partition(item: Any) -> model.FabricPartition:
    return model.FabricPartition(
        item.partition_id,
        tuple(_member(gpu) for gpu in _first(item.gpus, item.gpu_count)),
        active=item.is_active == 1)


def _member(gpu: Any) -> model.FabricMember:
    text = gpu.bus_id.decode('ascii', 'replace')
    return model.FabricMember(
        gpu.physical_id, model.PciAddress.parse(text) if text else None,
        gpu.links_available, gpu.line_rate)
