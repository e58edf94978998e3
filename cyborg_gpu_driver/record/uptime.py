# SPDX-License-Identifier: Apache-2.0
"""How long the host is up, and how long it was at the last report."""

from __future__ import annotations

import functools
import os
import time

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import ledger

KIND = 'cyborg-gpu uptime'
VERSION = 1
_NAME = 'uptime.json'
_BOOT_ID = '/proc/sys/kernel/random/boot_id'


@functools.cache
def _boot() -> str:
    with open(_BOOT_ID, encoding='ascii') as stream:
        return stream.read().strip()


def now() -> ledger.Moment:
    """The current moment.

    :raises OSError: if this is not Linux.
    """
    # It counts also while the host sleeps (clock_gettime(2)).
    return ledger.Moment(
        _boot(), time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)


def last(state_path: str) -> ledger.Moment | None:
    """The moment of the last report; None if there was none.

    :raises JournalError: if the file is damaged.
    """
    path = _path(state_path)
    content = durable.read(path, KIND, VERSION)
    if content is None:
        return None
    try:
        return codec.decode(ledger.Moment, content)
    except ValueError as error:
        raise exception.JournalError(
            path=path, reason=f'is damaged: {error}') from error


def note(state_path: str, moment: ledger.Moment) -> None:
    """Write the moment of a report."""
    durable.write(_path(state_path), KIND, VERSION, codec.encode(moment))


def _path(state_path: str) -> str:
    return os.path.join(state_path, _NAME)
