# SPDX-License-Identifier: Apache-2.0

"""Planning layouts and applying them to GPUs.

Each GPU is changed in a transaction of its own (:mod:`.transaction`), under
the lock that binds take too.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TypeVar

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import plan
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import transaction
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

# The layouts that the GPUs of a host need after a reboot.
#
# GPU instances do not survive a reboot, and on most GPUs the MIG mode does not
# either (MIG User Guide). But the operator can give the driver a boot
# configuration, with which it creates instances at each boot
# (RmMIGBootConfigurationFeatureFlags and the keys above it in nvrm_registry.h
# of NVIDIA's open kernel modules 565 to 595; off by default). So a restore
# reads first which instances there are. A GPU's record keeps the layout that
# an operator applied.


def saved(gpu: model.Gpu, record: gpu_record.GpuRecord, boot: str
          ) -> gpu_record.SavedLayout:
    """What to remember of a GPU.

    GPU instances that are bound to handles or were created for fixed vGPUs
    are left out: a restore of these creates them again. Instances that an
    unbind still has to destroy are left out too. But an instance that was
    created in the place of a destroyed one remains after the unbind.

    :param gpu: as it is now, with compute instances.
    """
    live = gpu.mig.instances if gpu.mig else ()
    others = record.fixed.instances | {
        claim.instance for claim in record.claims
        if claim.phase is not gpu_record.Phase.UNBINDING
        or any(claim.made(instance, boot) for instance in live)}
    found = spec.layout_of(gpu)
    return gpu_record.SavedLayout(
        gpu.address, gpu.device_id, bool(gpu.sriov_numvfs),
        dataclasses.replace(found, pending=found.enabled, instances=tuple(
            item for item in found.instances if item.bare not in others)))


def remembered(state_path: str) -> tuple[gpu_record.SavedLayout, ...]:
    """The layouts in the records of a machine, by GPU."""
    return tuple(
        record.layout for record in store.of(state_path).records().values()
        if record.layout is not None)


def remember(state_path: str, layouts: Iterable[gpu_record.SavedLayout]
             ) -> None:
    """Put layouts into the records, and forget those of other GPUs."""
    records = store.of(state_path)
    by_gpu = {item.gpu: item for item in layouts}
    for address in {*by_gpu, *records.addresses()}:
        records.put(address, layout=by_gpu.get(address))


LOG = logging.getLogger(__name__)

_Result = TypeVar('_Result')
_Counted = collections.Counter[
    tuple[spec.MigInstanceSpec, tuple[int, ...]]]
"""GPU instances, each with the slices of its compute instances."""


_MODES_SECONDS = 120.0
"""How long a GPU waits until the modes of the others are set."""


class Status(enum.Enum):
    """What an apply did to one GPU."""

    UNCHANGED = 'unchanged'
    """The GPU already was as wanted."""
    CHANGED = 'changed'
    PENDING = 'pending'
    """Its MIG mode waits for a reset; nothing else was done."""
    FAILED = 'failed'
    """The GPU is as before, unless the error says otherwise."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an apply did to one GPU, and the error that stopped it."""

    gpu: model.PciAddress
    status: Status
    error: exception.GpuDriverError | None = None


@dataclasses.dataclass(frozen=True)
class Options:
    """How much of a layout is applied."""

    mode_only: bool = False
    """Change only the MIG mode; GPU instances remain as they are."""
    may_reset: bool = True
    """False leaves a MIG mode that waits for a reset pending."""
    modes_set: Callable[[], object] = lambda: None
    """Called before each GPU instance is created."""


class Applier:
    """Plans and makes changes of layout on one machine."""

    def __init__(self, transactions: transaction.Transactions):
        self._transactions = transactions
        self._machine = transactions.machine
        self._records = transactions.records

    def saved(self, gpu: model.Gpu) -> gpu_record.SavedLayout:
        """What a checkpoint remembers of a GPU."""
        return saved(gpu, self._records.read(gpu.address),
                     self._machine.boot_id())

    def plan(self, gpu: model.Gpu, wanted: target.Wanted,
             options: Options = Options()) -> change.Change:
        """What an apply would do to a GPU as it is now; changes nothing.

        :raises ChangeRefused: naming what is in the way.
        """
        in_use = self._transactions.in_use(gpu)
        planned = (plan.mode(gpu, wanted.enabled, in_use)
                   if options.mode_only
                   else plan.plan(gpu, wanted, in_use))
        if gpu.mig is not None and gpu.mig.enabled != wanted.enabled:
            found = blockers.of_mode(self._machine, gpu, wanted.enabled)
            if found:
                raise exception.ChangeRefused(
                    f'GPU {gpu.address}: MIG mode cannot be turned '
                    + ('on' if wanted.enabled else 'off')
                    + ': blocked by ' + ', '.join(found))
        return planned

    def apply(self, gpu: model.Gpu, wanted: target.Wanted,
              options: Options = Options()) -> Status:
        """Apply a layout to one GPU, unless the GPU already has it.

        :raises ChangeRefused: nothing was changed.
        :raises ChangeFailed: saying whether the rollback succeeded.
        """
        with self._transactions.lock(gpu.address, locks.COMMAND_SECONDS):
            now = self._transactions.read(gpu)
            planned = self.plan(now, wanted, options)
            if planned.is_empty:
                self._records.put(gpu.address, change=None,
                                  layout=self.saved(now))
                return Status.UNCHANGED

            def check(gpu: model.Gpu) -> Mapping[str, object]:
                _verify(gpu, planned)
                # Written with the removal of the change. So a process that
                # is killed leaves no instance that is in neither record, and
                # no layout that the GPU does not have.
                return {'layout': self.saved(gpu)}

            now, pending = self._transactions.run(
                now, planned.steps, check, may_reset=options.may_reset,
                modes_set=options.modes_set)
            LOG.info('GPU %(gpu)s: %(steps)s', {
                'gpu': gpu.address,
                'steps': '; '.join(map(str, planned.steps))})
            return Status.PENDING if pending else Status.CHANGED

    def apply_all(self, gpus: Sequence[tuple[model.Gpu, target.Wanted]],
                  options: Options = Options()) -> tuple[Outcome, ...]:
        """Apply layouts to several GPUs.

        Each GPU succeeds or fails by itself; never raises for one of them.
        Their modes and instances are one transaction of each GPU.

        :returns: outcomes in the order of ``gpus``.
        """
        wanted = {gpu.address: item for gpu, item in gpus}

        def one(gpu: model.Gpu, modes_set: Callable[[], None]) -> Outcome:
            try:
                return Outcome(gpu.address, self.apply(
                    gpu, wanted[gpu.address], dataclasses.replace(
                        options, modes_set=modes_set)))
            except exception.GpuDriverError as error:
                return Outcome(gpu.address, Status.FAILED, error)

        return tuple(modes_first(
            [gpu for gpu, _ in gpus], one, lambda gpu: gpu.mig is not None
            and gpu.mig.enabled != wanted[gpu.address].enabled))


def modes_first(gpus: Sequence[model.Gpu],
                act: Callable[[model.Gpu, Callable[[], None]], _Result],
                switches: Callable[[model.Gpu], bool] = lambda gpu: True
                ) -> list[_Result]:
    """Change the modes of GPUs in turn, then the GPUs in parallel.

    Nothing else on this machine may use NVML while a mode is changed.

    :param act: changes one GPU. It calls its second argument once the modes
        are set, and continues when all GPUs have come as far.
    :param switches: whether a GPU needs a turn.
    """
    turn, all_set = threading.Lock(), threading.Barrier(max(1, len(gpus)))

    def wait() -> None:
        # A GPU that hangs holds up the others only so long.
        with contextlib.suppress(threading.BrokenBarrierError):
            all_set.wait(_MODES_SECONDS)

    def one(gpu: model.Gpu) -> _Result:
        with contextlib.ExitStack() as modes:
            # Its end releases the turn, and waits for the other GPUs.
            modes.callback(wait)
            if switches(gpu):
                modes.enter_context(turn)
            else:
                modes.close()
            return act(gpu, modes.close)

    return deadline.each(one, gpus)


def _verify(now: model.Gpu, planned: change.Change) -> None:
    """Compare the GPU that was read back with the plan."""
    layout, asked = spec.layout_of(now), planned.after()
    if (layout.enabled, layout.pending) != (asked.enabled, asked.pending):
        raise exception.StepFailed(
            reason='MIG mode is not what was asked for')
    found, expected = _counted(layout), _counted(asked)
    if found != expected:
        raise exception.StepFailed(
            reason=f'it has {_listed(found - expected)} that was not asked '
                   f'for, and lacks {_listed(expected - found)}')


def _counted(layout: spec.MigLayout) -> _Counted:
    return collections.Counter(
        (item.bare, tuple(sorted(size for _, size in item.compute)))
        for item in layout.instances)


def _listed(counted: _Counted) -> str:
    return ', '.join(
        f'{item} with compute instances of {list(sizes)} slices'
        for item, sizes in sorted(counted)) or 'nothing'
