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

"""NVML's shared library: where it is, and what its codes mean."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline

LOG = logging.getLogger(__name__)

WSL_PATH = '/usr/lib/wsl/lib/libnvidia-ml.so.1'
"""Where Windows puts the library under WSL 2, outside the loader's path."""

ABSENT = frozenset({'NOT_SUPPORTED', 'FUNCTION_NOT_FOUND'})
"""Errors that mean that a GPU or its driver does not have something."""

_INDEX_LIMIT = 64
"""Where to stop asking, should NVML never say that it is enough."""
_NATIVE = '_thread'
"""The module of Python's own locks."""
_PREFIX = 'NVML_ERROR_'
_SYMBOLS = {getattr(pynvml, name): name[len(_PREFIX):]
            for name in dir(pynvml) if name.startswith(_PREFIX)}
_MISSING = 'LIBRARY_NOT_FOUND'
_NOT_LOADED = 'DRIVER_NOT_LOADED'
_REASONS = {
    _MISSING: 'there is no NVML library (libnvidia-ml.so.1) on this machine',
    _NOT_LOADED: 'the NVIDIA kernel driver is not loaded',
    'LIB_RM_VERSION_MISMATCH': 'the NVML library and the loaded NVIDIA '
                               'kernel driver are of different versions; a '
                               'process keeps the library that it has '
                               'loaded, so restart it after an upgrade',
    'NO_PERMISSION': 'this user may not open the NVIDIA driver',
}


def initialise(wsl_path: str, load: Callable[[str], Any]) -> None:
    """Load the library if it is not loaded, and open a session.

    :param wsl_path: tried where the loader knows no library.
    :param load: loads a library by path, :class:`ctypes.CDLL`.
    :raises NVMLError: pynvml's own, as nvmlInit answered.
    """
    if type(pynvml.libLoadLock).__module__ != _NATIVE:
        # One of eventlet's, which the threads that call NVML cannot share.
        pynvml.libLoadLock = deadline.native('threading').Lock()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if (error.value != pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
                or not os.path.exists(wsl_path)):
            raise
        try:
            library = load(wsl_path)
        except OSError as failure:
            LOG.debug('%(path)s cannot be loaded: %(failure)s',
                      {'path': wsl_path, 'failure': failure})
            raise error from failure
        pynvml.nvmlLib = library
        pynvml.nvmlInit()


def function(name: str) -> Callable[..., Any] | None:
    """A function of pynvml, corrected where pynvml is wrong.

    :returns: None if pynvml is too old to have it.
    """
    return _CORRECTED.get(name) or getattr(pynvml, name, None)


def _framebuffer_usage(vgpu: int) -> int:
    """nvmlVgpuInstanceGetFbUsage in bytes.

    NVML writes an ``unsigned long long`` (nvml.h), and pynvml 13.615 makes
    room for an ``unsigned int``: it loses what is above 4 GiB.
    """
    used = ctypes.c_ulonglong()
    code = pynvml._nvmlGetFunctionPointer('nvmlVgpuInstanceGetFbUsage')(
        vgpu, ctypes.byref(used))
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return used.value


_CORRECTED = {'nvmlVgpuInstanceGetFbUsage': _framebuffer_usage}


def symbol(code: int) -> str:
    """Name of an ``nvmlReturn_t`` without ``NVML_ERROR_`` (nvml.h)."""
    if code == pynvml.NVML_SUCCESS:
        return 'SUCCESS'
    return _SYMBOLS.get(code, f'CODE_{code}')


def error(call: str, code: int) -> exception.NvmlError:
    """Our exception for what a call answered."""
    return exception.NvmlError(call=call, code=code, symbol=symbol(code))


def reason(failure: exception.NvmlError) -> str:
    """Why NVML cannot be opened, for people."""
    return _REASONS.get(failure.symbol, str(failure))


def indexed(ask: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
    """What NVML has at each index: a kind's numbers differ between boards.

    A gap is NOT_SUPPORTED, the end INVALID_ARGUMENT.

    :raises NvmlError: for anything else.
    """
    for index in range(_INDEX_LIMIT):
        try:
            found = ask(index)
        except exception.NvmlError as failure:
            if failure.symbol == 'INVALID_ARGUMENT':
                return
            if failure.symbol != 'NOT_SUPPORTED':
                raise
        else:
            yield index, found


def is_missing(failure: exception.NvmlError) -> bool:
    """Whether there is no NVML library at all."""
    return failure.symbol == _MISSING


def is_usual(failure: exception.NvmlError) -> bool:
    """Whether a healthy machine may be like that."""
    return failure.symbol in (_MISSING, _NOT_LOADED)


def text(value: str | bytes) -> str:
    """What NVML wrote into a buffer: up to NUL, bytes in a structure."""
    if isinstance(value, bytes):
        value = value.decode('utf-8', 'replace')
    return value.split('\0', 1)[0]
