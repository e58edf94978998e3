# SPDX-License-Identifier: Apache-2.0

"""Finds the GPU that a user or a file names. Pure, from the snapshot alone.

This is the only place that decides it. The index counts all physical NVIDIA
GPUs by PCI address, whatever their driver is and whether they can be read or
not: the index of a board must never become that of its neighbour.
"""

from __future__ import annotations

import re

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model

WAYS = ('its index or PCI address, in full or as lspci writes it, or its '
        'UUID')
"""How a GPU can be named, for the help of options."""

_INDEX = re.compile('[0-9]{1,9}', re.ASCII)
_WITHOUT_DOMAIN = re.compile(
    r'[0-9a-fA-F]{2}:[0-1][0-9a-fA-F]\.[0-7]', re.ASCII)
_EXPECTED = ('expected an index such as 0, a PCI address such as '
             '0000:41:00.0 or 41:00.0, or a UUID such as GPU-4f2c6a3b-...')


def gpus(host: model.Host) -> tuple[model.Gpu, ...]:
    """Return the GPUs of a machine in the order of their indices.

    :raises HostUnusable: if it is not known which PCI functions are GPUs,
        because an index might then name another board.
    """
    if host.unidentified:
        raise exception.HostUnusable(
            reason='its GPUs cannot be numbered: '
                   + '; '.join(host.unidentified))
    return tuple(gpu for gpu in host.gpus if gpu.physfn is None)


def index(host: model.Host, gpu: model.Gpu) -> int | None:
    """Return the index of a GPU; None if it has no index."""
    try:
        return [item.address for item in gpus(host)].index(gpu.address)
    except (exception.HostUnusable, ValueError):
        return None


def find(host: model.Host, text: str) -> model.Gpu:
    """Return the GPU that a user named."""
    if _INDEX.fullmatch(text):
        return _numbered(host, text)
    if text.upper().startswith('GPU-'):
        return _of_uuid(host, text)
    if text.upper().startswith('MIG-'):
        raise exception.InvalidValue(
            what='GPU', value=text, expected='this names a part of a GPU; '
            + _EXPECTED)
    return _at(host, text)


def obstacle(host: model.Host, gpu: model.Gpu) -> str:
    """Return why NVML cannot work on a GPU, with its name; else empty."""
    reason = condition.obstacle(gpu)
    return reason and f'{name(host, gpu)} cannot be reached: {reason}'


def name(host: model.Host, gpu: model.Gpu) -> str:
    """Return the name of a GPU for users: ``GPU 3 (0000:4e:00.0)``."""
    number = index(host, gpu)
    return (f'GPU {gpu.address}' if number is None
            else f'GPU {number} ({gpu.address})')


def _numbered(host: model.Host, text: str) -> model.Gpu:
    found = gpus(host)
    if int(text) < len(found):
        return found[int(text)]
    raise exception.UnknownGpu(f'there is no GPU {text}; ' + (
        f'this host has 0 to {len(found) - 1}' if found
        else 'this host has no NVIDIA GPU'))


def _of_uuid(host: model.Host, text: str) -> model.Gpu:
    for gpu in host.gpus:
        if (gpu.uuid or '').lower() == text.lower():
            return gpu
    unknown = [name(host, gpu) for gpu in host.gpus if gpu.uuid is None]
    raise exception.UnknownGpu(f'there is no GPU {text}; ' + (
        'NVML does not return the UUID of ' + ', '.join(unknown) if unknown
        else _addresses(host)))


def _at(host: model.Host, text: str) -> model.Gpu:
    if _WITHOUT_DOMAIN.fullmatch(text):
        return _without_domain(host, text)
    try:
        address = model.PciAddress.parse(text)
    except exception.InvalidValue:
        raise exception.InvalidValue(
            what='GPU', value=text, expected=_EXPECTED) from None
    for gpu in host.gpus:
        if gpu.address == address:
            return gpu
        if address in (function.address for function in gpu.vfs):
            raise exception.UnknownGpu(
                f'there is no GPU {address}; this is a virtual function '
                f'of {name(host, gpu)}')
    raise exception.UnknownGpu(
        f'there is no GPU {address}; {_addresses(host)}')


def _without_domain(host: model.Host, text: str) -> model.Gpu:
    found = [gpu for gpu in host.gpus
             if str(gpu.address).partition(':')[2] == text.lower()]
    if len(found) > 1:
        raise exception.InvalidValue(
            what='GPU', value=text, expected='several PCI domains have it: '
            + ', '.join(str(gpu.address) for gpu in found))
    if not found:
        raise exception.UnknownGpu(
            f'there is no GPU {text}; {_addresses(host)}')
    return found[0]


def _addresses(host: model.Host) -> str:
    return ('this host has ' + ', '.join(
        str(gpu.address) for gpu in host.gpus) if host.gpus
        else 'this host has no NVIDIA GPU')
