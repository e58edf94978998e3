# SPDX-License-Identifier: Apache-2.0

"""The C side of the simulated library: handles, memory and symbols."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import pynvml

from cyborg_gpu_driver.simulator import faults

# Opaque handles: numbers that stand for objects while these exist.

_FIRST = 0x7f5200000000
_STEP = 0x140


class Handles:
    """The handles that one NVML session has returned.

    A key names an object while the object exists: its kind, the GPU's
    address, then the serial number of an instance or the epoch of a GPU.
    Like memory, a number may be reused for another object of the same kind
    on the same GPU when the first object is gone. So a caller that keeps a
    handle too long cannot rely on an error.
    """

    def __init__(self):
        self._values = {}
        self._keys = {}
        self._next = _FIRST

    def value(self, key: tuple, gone: Callable[[tuple], bool]) -> int:
        """Return the handle of the object that ``key`` names.

        :param gone: whether the object of another key does not exist any
            more.
        """
        if key not in self._values:
            value = self._free(key, gone)
            self._values[key] = value
            self._keys[value] = key
        return self._values[key]

    def _free(self, key, gone):
        for value, other in self._keys.items():
            if other[:2] == key[:2] and gone(other):
                del self._values[other]
                return value
        self._next += _STEP
        return self._next

    def key(self, value: int) -> tuple | None:
        """Return the key of a handle; None if it was never returned."""
        return self._keys.get(value)

    def clear(self) -> None:
        """Forget all handles, as at the end of a session."""
        self._values.clear()
        self._keys.clear()


class Objects:
    """What a session has allocated, such as event sets, by handle.

    :param first: a number below the first handle.
    """

    def __init__(self, first: int):
        self._last = first
        self._contents: dict[int, Any] = {}

    def __len__(self):
        return len(self._contents)

    def make(self, content: Any) -> int:
        """Return the handle of a new object."""
        self._last += _STEP
        self._contents[self._last] = content
        return self._last

    def get(self, argument: Any) -> Any:
        """Return the content of a handle's object."""
        try:
            return self._contents[handle(argument)]
        except KeyError:
            raise faults.Refused(
                pynvml.NVML_ERROR_INVALID_ARGUMENT) from None

    def free(self, argument: Any) -> None:
        self.get(argument)
        del self._contents[handle(argument)]

    def clear(self) -> None:
        """Forget all objects, as at the end of a session."""
        self._contents.clear()


# The caller's memory: reading arguments and filling out-arguments.
#
# Arguments are as pynvml passes them: integers or ctypes integers, arrays,
# pointers, ``byref()`` objects and None for NULL.

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_BYREF: Any = type(ctypes.byref(ctypes.c_int()))


def number(argument: Any) -> int:
    """The value of an integer argument."""
    value = getattr(argument, 'value', argument)
    if not isinstance(value, int):
        raise faults.Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return value


def text(argument: Any) -> str:
    """The value of a ``char *`` argument."""
    value = getattr(argument, 'value', argument)
    if not isinstance(value, bytes):
        raise faults.Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return value.decode('utf-8', 'replace')


def target(reference: Any) -> Any:
    """The ctypes object that an out-argument points to."""
    if isinstance(reference, _BYREF):
        return reference._obj
    if isinstance(reference, ctypes._Pointer):
        if not reference:
            raise faults.Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return reference.contents
    if reference is None:
        raise faults.Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return reference


def switch(argument: Any) -> bool:
    """The value of an argument that is on or off."""
    value = number(argument)
    if value not in (0, 1):
        raise faults.Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return bool(value)


def versioned(reference: Any, *versions: int) -> Any:
    """The structure that an argument points to, in one of these versions."""
    found = target(reference)
    if found.version not in versions:
        raise faults.Refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    return found


def or_none(number: int | None) -> int:
    """An id; all ones stand for none."""
    return 0xffffffff if number is None else number


def put(reference: Any, value: int) -> None:
    """Fill an integer out-argument."""
    target(reference).value = value


def put_text(buffer: Any, length: int, value: str) -> None:
    """Fill a text buffer of ``length`` bytes."""
    data = value.encode()
    if len(data) >= length:
        raise faults.Refused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    target(buffer).value = data


def handle(argument: Any) -> int:
    """The address that a handle holds; 0 for NULL."""
    if isinstance(argument, _BYREF):
        argument = argument._obj
    if not isinstance(argument, ctypes._Pointer):
        return 0
    return ctypes.cast(argument, ctypes.c_void_p).value or 0


def put_handle(reference: Any, value: int) -> None:
    """Fill an out-argument with a handle."""
    memory = target(reference)
    if ctypes.sizeof(memory) < _POINTER:
        raise faults.Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    ctypes.c_void_p.from_buffer(memory).value = value


def as_handle(value: int, kind: type) -> Any:
    """A handle to assign to a structure's field."""
    return ctypes.cast(ctypes.c_void_p(value), kind)


def array(reference: Any, kind: Any, length: int,
          capacity: int | None = None) -> Any:
    """The caller's array of at least ``length`` elements of ``kind``.

    :param capacity: how many elements fit according to the caller, if the
        array itself has no length.
    """
    if isinstance(reference, ctypes._Pointer):
        if not reference:
            raise faults.Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        address = ctypes.cast(reference, ctypes.c_void_p).value
        known = capacity
    else:
        memory = target(reference)
        address = ctypes.addressof(memory)
        known = ctypes.sizeof(memory) // ctypes.sizeof(kind)
    if known is not None and known < length:
        raise faults.Refused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    return (kind * length).from_address(address)


def put_list(reference: Any, count_reference: Any, kind: type,
             values: list[Any]) -> None:
    """Fill a list as most NVML calls do: first the size, then the content."""
    count = target(count_reference)
    room = count.value
    count.value = len(values)
    if not values:
        return
    if reference is None or room < len(values):
        raise faults.Refused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    memory = array(reference, kind, len(values), room)
    for position, value in enumerate(values):
        memory[position] = value


# The table of C symbols that the simulated library has.

@dataclasses.dataclass(frozen=True)
class Symbol:
    function: Callable
    writes: bool
    """Whether the function can change the machine."""
    privileged: bool
    """Whether the function needs root."""
    before: Callable | None = None
    """Waits before the call, while the machine is not held. It is called with
    the same arguments."""


TABLE: dict[str, Symbol] = {}


def symbol(*names: str, writes: bool = False, privileged: bool = False,
           before: Callable | None = None):
    """Register a function as C symbols.

    The function gets the library, then the C function's arguments. It returns
    nothing for NVML_SUCCESS and raises ``Refused`` otherwise.
    """
    def register(function):
        for name in names:
            TABLE[name] = Symbol(function, writes, privileged, before)
        return function
    return register


def numbers(subject: Callable, table: dict[str, Callable]) -> None:
    """Register functions that fill integer out-arguments.

    :param subject: returns what the first argument names, such as a GPU.
    :param table: by C symbol, a function of the subject. It returns a value,
        or one for each out-argument.
    """
    def make(function):
        def fill(library, first, *references):
            found = function(subject(library, first))
            values = found if isinstance(found, (list, tuple)) else (found,)
            for reference, value in zip(references, values, strict=True):
                put(reference, int(value))
        return fill
    _register(table, make)


def texts(subject: Callable, table: dict[str, Callable]) -> None:
    """Register functions that fill a text buffer; see :func:`numbers`.

    The size of the buffer is a number or a pointer to one.
    """
    def make(function):
        def fill(library, first, buffer, size):
            value = function(subject(library, first))
            put_text(buffer, number(target(size)), value)
        return fill
    _register(table, make)


def _register(table, make):
    for name, function in table.items():
        symbol(name)(make(function))
