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

"""NVML's shared library: its path, its sessions and its codes."""

from __future__ import annotations

import contextlib
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

NVML = 'NVML'
"""The owner of calls that concern no GPU."""
ABSENT = frozenset({'NOT_SUPPORTED', 'FUNCTION_NOT_FOUND'})
"""Errors that mean that a GPU or its driver does not support a call."""
NO_SESSION = frozenset({'UNINITIALIZED', 'DRIVER_NOT_LOADED'})
"""Errors that mean that the session has ended."""

_INDEX_LIMIT = 64
_NO_NUMBER = 0xffffffff
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

    :param wsl_path: path to try if the loader finds no library.
    :param load: loads a library by path, such as :class:`ctypes.CDLL`.
    :raises NVMLError: pynvml's exception, if nvmlInit fails.
    """
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


def shut_down(library: Any, timeout: float,
              closed: Callable[[], object]) -> bool:
    """Close a session.

    :param library: the library in which it was opened.
    :param timeout: seconds.
    :param closed: called if the session is closed.
    :returns: whether it is closed now; if not, it closes when nvmlShutdown
        returns.
    :raises NvmlNotAnswering: if another call was ahead for too long;
        nvmlShutdown was not called, and the session is still open.
    """
    begun: list[bool] = []

    def call() -> None:
        begun.append(True)
        pynvml.nvmlShutdown()

    # A replaced library must not delay the calls of its successor.
    if pynvml.nvmlLib is library:
        try:
            with contextlib.suppress(pynvml.NVMLError):
                deadline.run(NVML, timeout, 'nvmlShutdown', call)
        except exception.NvmlNotAnswering:
            if begun:
                return False
            raise
    closed()
    return True


def function(name: str) -> Callable[..., Any] | None:
    """Return a function of pynvml, corrected where pynvml is wrong.

    :returns: None if pynvml is too old to have it.
    """
    return _CORRECTED.get(name) or getattr(pynvml, name, None)


def _framebuffer_usage(vgpu: int) -> int:
    """Return the bytes of nvmlVgpuInstanceGetFbUsage.

    NVML writes an ``unsigned long long`` (nvml.h), but pynvml 13.615 passes
    an ``unsigned int``, which loses what is above 4 GiB.
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
    """Return this library's exception for the return code of a call."""
    return exception.NvmlError(call=call, code=code, symbol=symbol(code))


def reason(failure: exception.NvmlError) -> str:
    """Return why NVML cannot be opened, as text for users."""
    return _REASONS.get(failure.symbol, str(failure))


def indexed(ask: Callable[[int], Any], limit: int = _INDEX_LIMIT
            ) -> Iterator[tuple[int, Any]]:
    """Yield each index with what NVML has there.

    All indices are tried, because a kind's numbers differ between boards.
    NVML answers NOT_SUPPORTED for a gap and INVALID_ARGUMENT at the end.

    :param limit: the index at which to stop if NVML never reports the end.
    :raises NvmlError: for any other error.
    """
    for index in range(limit):
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
    """Whether a healthy machine may have this error."""
    return failure.symbol in (_MISSING, _NOT_LOADED)


def known(number: int | None) -> int | None:
    """Return a number of NVML; None for 0xffffffff, which stands for none."""
    return None if number == _NO_NUMBER else number


def text(value: str | bytes) -> str:
    """Return the text in a buffer up to NUL; structures contain bytes."""
    if isinstance(value, bytes):
        value = value.decode('utf-8', 'replace')
    return value.split('\0', 1)[0]
