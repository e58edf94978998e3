# SPDX-License-Identifier: Apache-2.0


"""What errors and NVML's answers say about a GPU's health, and what heals it.

Sources: NVIDIA's XID catalogue ("Analyzing Xid Errors with the Xid
Catalog") for the action that each XID needs; "GPU Memory Error Management"
for row remapping. NVIDIA's device plugin for Kubernetes counts every XID
except those of applications. This module also does not count the XIDs that
the catalogue says to ignore.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Annotated

from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model

TRAIT = 'CUSTOM_GPU_UNHEALTHY_'
"""Prefix of the traits of unhealthy GPUs; the condition's code follows."""

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of the programs that run, not of the GPU. The catalogue asks for a
reset after 109 (a context switch took too long). The device plugin does not
count 109, because a program causes it."""

IGNORED_XIDS = frozenset({
    37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153,
    157, 160, 161,
    # A vGPU that does not start: the catalogue asks for other software.
    78,
    # "Recovery action changed" (the check reads the action itself), and
    # reports of power smoothing.
    154, 162, 163, 164, 165})
"""XIDs that the catalogue says to ignore. 63 reports a remapped row; the
check reads whether the row waits for a reset."""

RESET_XIDS = {
    46: 'stopped processing',
    48: 'uncorrected ECC error',
    54: 'auxiliary power is not connected',
    62: 'a microcontroller halted',
    64: 'a row or page of memory could not be remapped',
    74: 'NVLink error',
    79: 'fell off the bus',
    95: 'uncontained memory error',
    110: 'security fault',
    119: 'the GPU system processor does not answer',
    120: 'error of the GPU system processor',
    136: 'NVLink training failed',
    140: 'unrecovered ECC error',
    143: 'initialization failed',
    **dict.fromkeys(range(144, 151), 'NVLink error'),
    155: 'NVLink error',
    156: 'a component was retired',
    158: 'fatal timeout',
    # The catalogue has no action for these; they probably need one. Their
    # names are in src/common/sdk/nvidia/inc/nverror.h of NVIDIA's open kernel
    # modules 595.45.04. 175 replaces 119 if the memory is the reason
    # (_kgspClassifyGspTimeout in src/nvidia/src/kernel/gpu/gsp/kernel_gsp.c).
    167: 'fatal timeout of PCIe',
    169: 'a microcontroller halted',
    171: 'uncorrected memory error',
    172: 'uncorrected cache error',
    173: 'fatal failure of a link to the CPU',
    175: 'error of the memory subsystem',
}
"""XIDs after which the catalogue asks for a reset or a restart. They close the
whole GPU until then. Every other error ends with its program, and clean checks
heal it."""

LOST = 'LOST'
NOT_ANSWERING = 'NOT_ANSWERING'
REMAP_FAILED = 'REMAP_FAILED'
DEAD_FUNCTION = 'DEAD_FUNCTION'
_XID = 'XID_'
_CODE = re.compile('XID_[0-9]{1,9}|(?!XID_)[A-Z][A-Z0-9_]{,99}', re.ASCII)
_PERMANENT = frozenset({REMAP_FAILED})
_TEXTS = {
    LOST: 'NVML cannot reach it',
    NOT_ANSWERING: 'an NVML call for it does not return',
    'RESET_REQUIRED': 'NVML requires a reset of it',
    REMAP_FAILED: 'a row of its memory could not be remapped; replace the '
                  'board',
    'REMAP_PENDING': 'rows of its memory wait for a reset to be remapped',
    'RETIRED_PENDING': 'pages of its memory wait for a reset to be retired',
    'ECC': 'uncorrected ECC errors since the driver was loaded; a reset '
           'clears the counter',
    'THERMAL': 'too hot',
    condition.UNREACHABLE: 'its PCI configuration space cannot be read',
    condition.FATAL: 'fatal PCIe errors since NVML was last queried',
    condition.LANES: 'its PCIe link has lost lanes',
    DEAD_FUNCTION: 'servers on this virtual function do not come up; '
                   'disabling and enabling the functions may cure it',
    'NEEDS_GPU_RESET': 'the driver asks for a reset',
    'NEEDS_NODE_REBOOT': 'the driver asks for a restart of the machine',
    'NEEDS_DRAIN_P2P': 'the driver asks to stop its NVLink traffic',
    'NEEDS_DRAIN_AND_RESET': 'the driver asks for a reset when it is idle',
    'NEEDS_BUS_RESET': 'the driver asks for a reset of its bus',
    'NEEDS_SYSTEM_REBOOT': 'the driver asks for a restart of the system',
}
_ACTIONS = {1: 'NEEDS_GPU_RESET', 2: 'NEEDS_NODE_REBOOT',
            3: 'NEEDS_DRAIN_P2P', 4: 'NEEDS_DRAIN_AND_RESET',
            6: 'NEEDS_BUS_RESET', 7: 'NEEDS_SYSTEM_REBOOT'}
"""nvmlDeviceGpuRecoveryAction_t."""
_TOLD_BY = {'REMAP_PENDING': 'remap_pending',
            'RETIRED_PENDING': 'retired_pending'}
"""The fact that a check must have read before it can clear the condition.
Remapped rows cannot be read while a GPU in MIG mode has instances."""
_NO_ACTION = (None, 0, 5)
"""5 is NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN (nvidia-ml-py): it
concerns the domain of hosts that share memory, not this GPU."""
_AGAIN_SECONDS = 10
"""The same error within this time is not counted again."""


class State(enum.Enum):
    OK = 'ok'
    TRANSIENT = 'transient'
    """Unhealthy until a reset, a restart or a number of clean checks."""
    PERMANENT = 'permanent'
    """Unhealthy until the board is replaced."""


def _checked_code(value: str) -> str:
    """Return a condition's code, which becomes a part of a trait's name."""
    if not _CODE.fullmatch(value):
        raise ValueError(f'{value!r} is not a code')
    return value


Code = Annotated[str, _checked_code]
Part = model.Placement | model.PciAddress
"""A part of a GPU with a health of its own: the instance at a placement, or
a virtual function."""


@dataclasses.dataclass(frozen=True)
class Condition:
    """A fault of a GPU or GPU instance. Times are in seconds of the epoch."""

    code: Code
    """``XID_79``, ``REMAP_PENDING``: the end of the trait's name."""
    first: float
    last: float
    """When the condition was first and last reported."""
    count: int = 1
    clean: int = 0
    """The number of clean checks since the last report."""
    placement: model.Placement | None = None
    """Of the GPU instance that has the fault; None for the whole GPU."""
    instance_id: int | None = None
    function: model.PciAddress | None = None
    """The virtual function that has the fault; None for any other fault."""

    @property
    def part(self) -> Part | None:
        """The part of the GPU that has the fault; None for the whole GPU."""
        return self.function or self.placement

    @property
    def xid(self) -> int | None:
        if self.code.startswith(_XID):
            return int(self.code[len(_XID):])
        return None

    @property
    def text(self) -> str:
        """A description of the condition for people."""
        if self.xid is None:
            return _TEXTS.get(self.code, self.code)
        what = RESET_XIDS.get(self.xid)
        return f'XID {self.xid}' + (f' ({what})' if what else '')


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The health of a GPU or of one of its instances."""

    state: State = State.OK
    reasons: tuple[str, ...] = ()
    """Descriptions for people."""
    trait: str | None = None
    since: float | None = None
    """Seconds of the epoch."""

    @property
    def is_unhealthy(self) -> bool:
        return self.state is not State.OK


WELL = Verdict()


def counts(xid: int, ignored: Collection[int] = ()) -> bool:
    """Whether an XID says anything about the GPU's health.

    :param ignored: other XIDs that the operator does not want counted.
    """
    return not (xid in APPLICATION_XIDS or xid in IGNORED_XIDS
                or xid in ignored)


def noted(conditions: tuple[Condition, ...], xid: int, now: float,
          placement: model.Placement | None = None,
          instance_id: int | None = None) -> tuple[Condition, ...]:
    """Return the conditions after an XID that counts.

    An XID after which the GPU has to be reset concerns the whole GPU,
    whatever instance the driver names: the next instance at that place, and
    each other one, is on the same hardware.
    """
    if xid in RESET_XIDS:
        placement = instance_id = None
    code = f'{_XID}{xid}'
    known = next((item for item in conditions if item.code == code
                  and item.placement == placement), None)
    if known is None:
        return (*conditions, Condition(code, now, now, placement=placement,
                                       instance_id=instance_id))
    if not known.clean and abs(now - known.last) < _AGAIN_SECONDS:
        return conditions
    again = dataclasses.replace(known, last=now, count=known.count + 1,
                                clean=0, instance_id=instance_id)
    return tuple(again if item is known else item for item in conditions)


def seen(conditions: tuple[Condition, ...], facts: condition.Facts,
         now: float) -> tuple[Condition, ...]:
    """Return the conditions, with those that the GPU's answers show."""
    codes = set(_codes(facts))
    kept = tuple(dataclasses.replace(item, clean=0)
                 if item.code in codes else item for item in conditions)
    known = {item.code for item in conditions}
    return kept + tuple(Condition(code, now, now)
                        for code in _codes(facts) if code not in known)


def checked(conditions: tuple[Condition, ...], facts: condition.Facts,
            needed: int, now: float,
            live: Collection[tuple[int, model.Placement]] | None = None
            ) -> tuple[Condition, ...]:
    """Return the conditions after one check.

    A check is clean if the GPU answers and nothing is wrong. An XID that
    needs a reset heals by clean checks only if the driver says that the GPU
    needs no action: another tool has reset it, or it has recovered.

    :param needed: how many clean checks heal a condition.
    :param live: ids and placements of the GPU's instances, if known. A
        condition ends when its instance no longer exists.
    """
    found = [item for item in seen(conditions, facts, now)
             if item.placement is None or live is None
             or (item.instance_id, item.placement) in live]
    codes = set(_codes(facts))
    if facts.by_pci or facts.answered:
        found = [item for item in found
                 if item.code not in condition.PCI or item.code in codes]
    if not facts.answered or codes:
        return tuple(found)
    found = [dataclasses.replace(item, clean=item.clean + 1)
             if _heals(item, facts) else item for item in found]
    return tuple(item for item in found if item.clean < needed)


def after_reset(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions that remain after a reset or a restart."""
    return tuple(item for item in conditions if item.code in _PERMANENT)


def without_instance(conditions: Iterable[Condition],
                     placement: model.Placement) -> tuple[Condition, ...]:
    """Return the conditions that remain after an instance is destroyed."""
    return tuple(item for item in conditions if item.placement != placement)


def errors(before: Iterable[Condition], after: Iterable[Condition]
           ) -> tuple[int, str]:
    """Return how many errors are new, and a description of the last one.

    A condition that lasts is one error. An XID that occurs again is another
    error. A dead virtual function is none: a user who deletes servers at once
    may have caused it.

    :returns: 0 and an empty text if there is nothing new.
    """
    known = {(item.code, item.part): item.count for item in before}
    new = [(item, more) for item in after
           if item.code != DEAD_FUNCTION
           and (more := item.count - known.get((item.code, item.part),
                                               0)) > 0]
    if not new:
        return 0, ''
    last = max((item for item, _ in new), key=lambda item: item.last)
    return sum(more for _, more in new), last.text


def judge(conditions: Iterable[Condition],
          part: Part | None = None) -> Verdict:
    """Return the health of the whole GPU, or of one part of it.

    A condition of the whole GPU does not count for its parts.
    """
    found = sorted((item for item in conditions if item.part == part),
                   key=lambda item: (item.code not in _PERMANENT,
                                     item.first, item.code))
    if not found:
        return WELL
    worst = found[0]
    return Verdict(
        State.PERMANENT if worst.code in _PERMANENT else State.TRANSIENT,
        tuple(item.text for item in found), TRAIT + worst.code,
        min(item.first for item in found))


def unhealthy_parts(conditions: Iterable[Condition]) -> list[Part]:
    """The unhealthy instances and virtual functions of a GPU, sorted."""
    return sorted({item.part for item in conditions if item.part is not None},
                  key=str)


def _heals(item: Condition, facts: condition.Facts) -> bool:
    """Whether a clean check counts towards the end of a condition."""
    if item.code in (*_PERMANENT, DEAD_FUNCTION):
        return False
    if item.code in _TOLD_BY and getattr(facts, _TOLD_BY[item.code]) is None:
        return False
    return item.xid not in RESET_XIDS or facts.recovery_action == 0


def _codes(facts: condition.Facts) -> Iterator[str]:
    """Yield the codes of what the GPU's answers show, worst first."""
    yield from facts.pci
    action = facts.recovery_action
    for is_seen, code in (
            (facts.remap_failed, REMAP_FAILED),
            (facts.not_answering, NOT_ANSWERING), (facts.lost, LOST),
            (facts.reset_required, 'RESET_REQUIRED'),
            (action not in _NO_ACTION,
             _ACTIONS.get(action or 0, f'NEEDS_ACTION_{action}')),
            (facts.remap_pending, 'REMAP_PENDING'),
            (facts.retired_pending, 'RETIRED_PENDING'),
            (facts.ecc_uncorrected, 'ECC'),
            (facts.thermal_slowdown, 'THERMAL')):
        if is_seen:
            yield code


def codes_of(traits: Iterable[str]) -> tuple[str, ...]:
    """Return the codes in the traits of a GPU's provider: ``XID_79``."""
    return tuple(sorted(trait.removeprefix(TRAIT) for trait in traits
                        if trait.startswith(TRAIT)))
