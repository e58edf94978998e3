# SPDX-License-Identifier: Apache-2.0

"""Remove a tenant's traces from the GPUs of a node, and check for more."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from importlib import resources
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.baremetal import modes
from cyborg_gpu_driver.baremetal import node
from cyborg_gpu_driver.baremetal import ramdisk as ramdisk_module
from cyborg_gpu_driver.host import health as host_health
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import modes as nvml_modes
from cyborg_gpu_driver.host.nvml import process as nvml_process
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import target as partition_target
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.ready import apply

# Faults of a node's GPUs between two tenants.


def had_gpus(properties: Mapping[str, Any]) -> bool:
    """Whether the last inspection found GPUs.

    Also true if the record cannot be read; the code that uses it reports that.
    """
    inspected = properties.get(node.PROPERTY)
    if isinstance(inspected, Mapping) and isinstance(
            inspected.get('boards'), list):
        return bool(inspected['boards'])
    return inspected is not None


def recorded_modes(properties: Mapping[str, Any]) -> modes.Modes:
    """Return the modes that the last inspection recorded."""
    return modes.recorded(properties.get(node.PROPERTY))


def boards(gpus: Sequence[model.Gpu], properties: Mapping[str, Any]) -> str:
    """Describe how the GPUs differ from the last inspection's; or ``''``.

    Without the property that an inspection writes, nothing differs.
    """
    inspected = properties.get(node.PROPERTY)
    if inspected is None:
        return ''
    try:
        expected: collections.Counter[str] = collections.Counter()
        for board in inspected['boards']:
            expected[str(board['device_id'])] += int(board['count'])
    except (KeyError, TypeError, ValueError):
        return (f"the node's property {node.PROPERTY} was not written "
                'by an inspection; inspect the node again')
    found = collections.Counter(gpu.device_id for gpu in gpus)
    if found == expected:
        return ''
    names = {gpu.device_id: gpu.model for gpu in gpus if gpu.model}
    names.update((board['device_id'], board['model'])
                 for board in inspected['boards'] if board.get('model'))
    missing = sorted({*recorded_modes(properties).addresses}.difference(
        gpu.address for gpu in gpus))
    return (f'{_listed(found, names)} where the last inspection found '
            f'{_listed(expected, names)}; '
            + (f'missing: {", ".join(map(str, missing))}; ' if missing
               else '')
            + 'find the missing GPUs, or inspect the node again')


def of_gpu(gpu: model.Gpu, conditions: Iterable[health.Condition],
           wanted: modes.Modes | None, ecc: bool | None
           ) -> tuple[str, ...]:
    """Return what is wrong with a GPU that NVML should see, for people.

    :param wanted: the modes that it must have; None if a tenant sets them.
    :param ecc: its pending ECC mode; None if it has none.
    """
    if not gpu.visible_to_nvml:
        return (*gpu.problems, 'NVML does not list it; its kernel driver is '
                f'{gpu.driver or "none"}')
    return (*gpu.problems, *health.judge(conditions).reasons,
            *_left(gpu), *(modes.wrong(wanted, gpu, ecc)
                           if wanted is not None else ()))


def _left(gpu) -> Iterator[str]:
    """Yield what a tenant has left that partitions the GPU."""
    for vgpu in gpu.vgpus:
        yield f'vGPU {vgpu.name} is left on {vgpu.function}'
    if gpu.sriov_numvfs:
        yield f'{gpu.sriov_numvfs} virtual functions are left'
    if gpu.mig is None:
        return
    for instance in gpu.mig.instances:
        name = spec.profile_name(gpu.mig, instance.profile_id)
        yield f'GPU instance {name} is left at {instance.placement}'


def _listed(counts, names):
    return partition_target.listed({
        names.get(board) or f'NVIDIA {board}': count
        for board, count in sorted(counts.items())}) or 'no GPU'


Evidence = list[dict[str, Any]]
"""What was done or found, one item per GPU; for JSON."""


class Cleaner:
    """Cleans the GPUs of one node."""

    def __init__(self, ramdisk: ramdisk_module.Ramdisk):
        self._ramdisk = ramdisk
        self._nvml = ramdisk.platform.nvml

    def clear(self, properties: Mapping[str, Any]) -> Evidence:
        """Remove everything that partitions a GPU, in the driver's order.

        That is vGPUs, compute and GPU instances, virtual functions and MIG
        mode. It restores the MIG and ECC modes that the last inspection
        recorded. It does not touch anything in use.

        :raises StepFailed: naming each GPU on which something is left.
        """
        wanted = recorded_modes(properties)
        return ramdisk_module.each(
            self._ramdisk.ours().gpus,
            lambda gpu: {**self._clear(gpu, wanted.wants_mig(gpu.address)),
                         **self._set_ecc(gpu.address,
                                         wanted.ecc.get(gpu.address))})

    def verify(self, properties: Mapping[str, Any],
               has_tenant: bool = False) -> Evidence:
        """Check that the GPUs are the node's, healthy, idle and whole.

        They must also have the modes that the last inspection recorded.

        Without an NVML library it checks only the facts in sysfs.

        :param has_tenant: whether a tenant has the node; then the modes are
            the tenant's and are not checked.
        :raises StepFailed: naming each GPU that fails, and why.
        """
        everything = self._ramdisk.snapshot()
        host = self._ramdisk.ours(everything)
        # First, because without a GPU NVIDIA's driver does not start, and
        # NVML blames the driver.
        reason = boards(everything.gpus, properties)
        if not reason and not everything.gpus:
            reason = ('there is no NVIDIA GPU, and no inspection of the node '
                      'has found one, so nothing can be verified')
        if not reason and host.nvml_problem and not host.library_missing:
            reason = ('the ramdisk has NVML, but it does not work: '
                      + host.nvml_problem)
        if reason:
            raise exception.StepFailed(reason=reason)
        if host.nvml_problem:
            return ramdisk_module.each(host.gpus, lambda gpu: {
                'health': None, 'reason': host.nvml_problem})
        wanted = None if has_tenant else recorded_modes(properties)
        if wanted is not None:
            reason = modes.wrong_confidential_computing(
                wanted, nvml_modes.confidential_computing(self._nvml))
            if reason:
                raise exception.StepFailed(reason=reason)
        return ramdisk_module.each(
            host.gpus, lambda gpu: self._verify(gpu, wanted))

    def _set_ecc(self, address, wanted):
        """Set an ECC mode; it takes effect with the next reset or restart.

        :param wanted: None if either mode is fine.
        """
        found = nvml_modes.ecc(self._nvml, address)
        if wanted is None or found is None or found.pending == wanted:
            return {}
        with locks.gpu(self._ramdisk.state_path, address):
            privileged_gpu.set_ecc_mode(str(address), wanted)
        return {'ecc_mode': wanted}

    def _clear(self, gpu, mig):
        if gpu.problems or not gpu.visible_to_nvml:
            raise exception.StepFailed(reason='; '.join(gpu.problems) or (
                'NVML does not list it; its kernel driver is '
                f'{gpu.driver or "none"}'))
        before = _cut(gpu)
        for found in self._ramdisk.vgpus.found():
            if found.gpu.address == gpu.address:
                self._ramdisk.vgpus.remove(found, None)
        if gpu.sriov_numvfs:
            self._remove_functions(self._read(gpu))
        gpu = self._read(gpu)
        status = apply.Status.UNCHANGED
        if gpu.mig is not None:
            status = self._ramdisk.applier.apply(
                gpu, partition_target.Wanted(mig), apply.Options(
                    may_reset=self._ramdisk.resetter.can_reset(gpu)))
        return {'before': before, 'after': _cut(self._read(gpu)),
                'status': status.value}

    def _remove_functions(self, gpu):
        """Remove a GPU's instances and then its virtual functions."""
        if gpu.mig is not None:
            self._ramdisk.applier.apply(
                gpu, partition_target.Wanted(gpu.mig.enabled), apply.Options())
        with locks.gpu(self._ramdisk.state_path, gpu.address), \
                self._nvml.alone():
            privileged_gpu.set_virtual_functions(str(gpu.address), False)

    def _read(self, gpu):
        return self._ramdisk.snapshot().gpu(gpu.address)

    @gate.series
    def _verify(self, gpu, wanted):
        facts = host_health.read(self._nvml, gpu.address)
        ecc = (nvml_modes.ecc(self._nvml, gpu.address)
               if gpu.visible_to_nvml else None)
        reasons = of_gpu(gpu, health.seen((), facts, time.time()),
                         wanted, ecc.pending if ecc else None)
        if reasons:
            raise exception.StepFailed(reason='; '.join(reasons))
        traces = self._traces(gpu)
        used = cleaning.in_use(traces)
        if used:
            raise exception.StepFailed(reason=used)
        return {'model': gpu.model, 'mig_mode': gpu.mig and gpu.mig.enabled,
                'ecc_mode': ecc and dataclasses.asdict(ecc),
                'health': dataclasses.asdict(facts),
                'traces': dataclasses.asdict(traces)}

    def _traces(self, gpu: model.Gpu) -> cleaning.Traces:
        device = self._nvml.device(gpu.address)
        used, total = nvml_process.memory_mib(
            self._nvml, device) or (None, None)
        return cleaning.Traces(
            driver=gpu.driver, uuid=gpu.uuid,
            processes=len(nvml_process.processes(self._nvml, device)),
            memory_used_mib=used, memory_mib=total)


def _cut(gpu):
    """Return the counts of what partitions a GPU."""
    return {'vgpus': len(gpu.vgpus), 'virtual_functions': gpu.sriov_numvfs,
            'gpu_instances': len(gpu.mig.instances) if gpu.mig else 0,
            'mig_mode': gpu.mig and gpu.mig.enabled}


# The steps of this driver, and which of them a node can be offered.

CLEAR = 'clear_gpu_partitions'
RESET = 'reset_gpus'
VERIFY = 'verify_gpus'

CLEAN_PRIORITIES = {CLEAR: 90, RESET: 89, VERIFY: 5}
"""Highest first. A tenant's partitions are removed before the disks are erased
(ironic-python-agent's erase_devices has 10), which may take hours. The reset
then activates the changes that wait for one. The verification comes last, on
the state that the next tenant gets."""

_NVIDIA = 'nvidia'
_VFIO = 'vfio'
"""In the names of drivers that report which process has a GPU open."""
_KEEPS_MIG_MODE = frozenset({'ampere'})
"""Architectures whose MIG mode outlives a restart (MIG User Guide, System
Considerations)."""


def obstacle(step: str, host: model.Host,
             resettable: Collection[model.PciAddress] = (),
             inspected: bool = False, ecc_recorded: bool = False) -> str:
    """Return why a node cannot be offered a step, for people; or ``''``.

    :param host: without the GPUs that the operator wants left alone.
    :param ecc_recorded: whether the last inspection recorded ECC modes.
    """
    if step == VERIFY and inspected:
        return ''
    if not host.gpus:
        return 'there is no NVIDIA GPU'
    if (step == inventory.APPLY_LAYOUT
            and not any(map(_may_have_mig, host.gpus))):
        return 'none of its GPUs supports MIG'
    if step == CLEAR and not any(map(_has_partitions, host.gpus)) \
            and not ecc_recorded:
        return 'none of its GPUs supports MIG or has vGPUs' + (
            f' (NVML: {host.nvml_problem})' if host.nvml_problem else '')
    if step == RESET:
        return '; '.join(filter(None, (
            _fixed(gpu, resettable) for gpu in host.gpus)))
    return ''


def keeps_mig_mode(gpu: model.Gpu) -> bool:
    """Whether a GPU keeps its MIG mode over a restart."""
    return gpu.mig is not None and gpu.architecture in _KEEPS_MIG_MODE


def _may_have_mig(gpu):
    return gpu.mig is not None or not gpu.visible_to_nvml


def _has_partitions(gpu):
    return gpu.mig is not None or (gpu.visible_to_nvml and bool(
        gpu.sriov_numvfs or gpu.vgpus))


def _fixed(gpu, resettable):
    """Return why a GPU cannot be reset."""
    if gpu.address not in resettable:
        return f'the kernel cannot reset GPU {gpu.address}'
    if gpu.driver == _NVIDIA and not gpu.visible_to_nvml:
        return (f'GPU {gpu.address} is bound to the NVIDIA driver, and NVML '
                'does not list its users')
    if gpu.driver not in (None, _NVIDIA) and _VFIO not in gpu.driver:
        return (f'GPU {gpu.address} is bound to {gpu.driver}, whose users are '
                'not known')
    return ''


# The files in a deployed image that partition the GPUs at its first boot.

UNIT = 'cyborg-gpu-firstboot.service'
"""The systemd unit, a file next to this module."""
LAYOUT_PATH = 'etc/cyborg-gpu/layout.yaml'
"""Path of the layout, from the root of the image."""
UNIT_PATH = f'etc/systemd/system/{UNIT}'
WANTS_PATH = f'etc/systemd/system/multi-user.target.wants/{UNIT}'
"""The link that ``systemctl enable`` creates for
``WantedBy=multi-user.target``."""


def unit_text() -> str:
    """Return the unit, as it is installed with this package."""
    return resources.files(__package__).joinpath(UNIT).read_text('utf-8')
