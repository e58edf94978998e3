# SPDX-License-Identifier: Apache-2.0

"""The format of attach handles and vGPU types. Pure.

Both become part of paths in sysfs, so they are checked wherever they come
from: RPC, a record, the caller of the privileged process.
"""

from __future__ import annotations

import re
import uuid

from cyborg_gpu_driver import exception

_MDEV_TYPE = re.compile(r'nvidia-[1-9][0-9]{0,8}', re.ASCII)
_GROUP = re.compile(r'nvlink-([1-9][0-9]?)', re.ASCII)
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', re.ASCII)


def mdev_type(value: str) -> str:
    """Return ``value`` if it can be the name of an NVIDIA mdev type.

    :raises InvalidValue: if not.
    """
    if not isinstance(value, str) or not _MDEV_TYPE.fullmatch(value):
        raise exception.InvalidValue(
            what='mdev type', value=value,
            expected='expected nvidia- and a number, such as nvidia-474')
    return value


def group_size(value: str) -> int | None:
    """Return the size of the group that a text like ``nvlink-2`` asks for.

    :returns: None if ``value`` asks for no group.
    """
    match = _GROUP.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) if match else None


def asked_type(value: str) -> str:
    """Return ``value`` if a handle can ask for it: an mdev type or a group.

    :raises InvalidValue: if not.
    """
    return value if group_size(value) else mdev_type(value)


def type_number(type_id: str) -> int:
    """Return NVML's number of a vGPU type: 474 for ``nvidia-474``.

    :raises InvalidValue: if ``type_id`` is not a vGPU type.
    """
    return int(mdev_type(type_id).rpartition('-')[2])


def handle(value: str) -> str:
    """Return ``value`` if it is a UUID, in the form that sysfs uses.

    :raises InvalidValue: if not.
    """
    if not isinstance(value, str) or not _UUID.fullmatch(value.lower()):
        raise exception.InvalidValue(
            what='attach handle UUID', value=value,
            expected='expected 8-4-4-4-12 hexadecimal digits')
    return str(uuid.UUID(value))
