# SPDX-License-Identifier: Apache-2.0

"""Modes of a node's GPUs that a tenant can change, and that outlive it.

An inspection records them in the node's property; cleaning compares the
GPUs with that record and restores what it can:

======================= ====================== =======================
mode                    lives in               restored by
======================= ====================== =======================
MIG (up to Ampere)      InfoROM of the board   clear_gpu_partitions
ECC                     InfoROM of the board   clear_gpu_partitions
confidential computing  firmware of the board  NVIDIA's own tools alone
======================= ====================== =======================
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model

KEY = 'modes'
"""Key below the node's property ``nvidia_gpus``."""
_GPUS = 'gpus'
_CC = 'confidential_computing'
_ECC = 'ecc'
_MIG = 'mig'
_AGAIN = ', or inspect the node again to accept this mode'
_CC_TOOL = ("set it with nvidia_gpu_tools.py of NVIDIA's gpu-admin-tools "
            '(--set-cc-mode={} --reset-after-cc-mode-switch)')


@dataclasses.dataclass(frozen=True)
class Modes:
    """The modes that a node's GPUs must have. Unknown ones are missing."""

    ecc: Mapping[model.PciAddress, bool] = dataclasses.field(
        default_factory=dict)
    """Whether ECC is on, or will be after the next restart."""
    mig: Mapping[model.PciAddress, bool] = dataclasses.field(
        default_factory=dict)
    """Whether MIG mode is on, or will be after the next restart."""
    confidential_computing: str | None = None
    """``off``, ``on`` or ``devtools``."""

    @property
    def addresses(self) -> frozenset[model.PciAddress]:
        """The GPUs of which at least one mode is known."""
        return frozenset((*self.ecc, *self.mig))

    def wants_mig(self, address: model.PciAddress) -> bool:
        """Whether a GPU must be in MIG mode; false unless recorded."""
        return self.mig.get(address, False)

    def to_dict(self) -> dict[str, Any]:
        """Return the node's property, by GPU; JSON."""
        return {_CC: self.confidential_computing, _GPUS: {
            str(address): {_ECC: self.ecc.get(address),
                           _MIG: self.mig.get(address)}
            for address in sorted(self.addresses)}}


def recorded(inspected: Any) -> Modes:
    """Return what the last inspection recorded, without malformed parts.

    :param inspected: the node's property ``nvidia_gpus``.
    """
    found = _mapping(_mapping(inspected).get(KEY))
    gpus = {}
    for address, values in _mapping(found.get(_GPUS)).items():
        with contextlib.suppress(exception.InvalidValue):
            gpus[model.PciAddress.parse(address)] = _mapping(values)
    mode = found.get(_CC)
    return Modes(_flags(gpus, _ECC), _flags(gpus, _MIG),
                 mode if isinstance(mode, str) else None)


def wrong(wanted: Modes, gpu: model.Gpu, ecc: bool | None) -> Iterator[str]:
    """Describe how a GPU's modes differ from those recorded, for people.

    A mode that a restart will correct counts as correct, because a node is
    restarted between its cleaning and its next tenant.

    :param ecc: the GPU's pending ECC mode; None if it has none.
    """
    if gpu.mig is not None:
        yield from _differs('MIG', wanted.wants_mig(gpu.address),
                            gpu.mig.pending)
    yield from _differs('ECC', wanted.ecc.get(gpu.address), ecc)


def wrong_confidential_computing(wanted: Modes, found: str | None) -> str:
    """Describe how the machine's mode differs from the record; or ``''``."""
    expected = wanted.confidential_computing
    if None in (expected, found) or expected == found:
        return ''
    return (f'confidential computing is {found}, but was {expected} at the '
            f'last inspection: {_CC_TOOL.format(expected)}{_AGAIN}')


def _differs(name: str, wanted: bool | None, found: bool | None
             ) -> Iterator[str]:
    if None not in (wanted, found) and wanted != found:
        yield (f'its {name} mode is {_word(found)} instead of '
               f'{_word(wanted)}: clear_gpu_partitions sets it{_AGAIN}')


def _word(enabled: bool | None) -> str:
    return 'on' if enabled else 'off'


def _flags(gpus: Mapping[model.PciAddress, Mapping[str, Any]], key: str
           ) -> dict[model.PciAddress, bool]:
    return {address: values[key] for address, values in gpus.items()
            if isinstance(values.get(key), bool)}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
