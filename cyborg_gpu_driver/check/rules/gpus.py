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


"""Checks of the GPUs, their driver and the kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cyborg_gpu_driver.check import facts as facts_module
from cyborg_gpu_driver.check.rules import result
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import drivers
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.partition.elastic import role as roles
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.partition.offer import passthrough

_NVIDIA = 'nvidia'
_OTHERS = ('nouveau', 'nova_core', 'nvidiafb')
"""Drivers in the kernel tree that bind NVIDIA GPUs."""
_BLACKLIST = ('Write "blacklist {0}" to a file in /etc/modprobe.d, rebuild '
              'the initramfs, and reboot')
_DISPLAY = 'nvidia_drm'
_MAJOR = re.compile(r'\d+', re.ASCII)
_WITHOUT_MDEV = (6, 8)
_FIRST_FOR_IT = 550
"""The driver of vGPU software 17, the first that supports Linux 6.8."""
_BY_HAND = {
    action.Action.DISABLE_FUNCTIONS: 'sriov-manage -d {}',
    action.Action.ENABLE_MIG: 'nvidia-smi -i {} -mig 1',
    action.Action.DISABLE_MIG: 'nvidia-smi -i {} -mig 0',
    action.Action.ENABLE_FUNCTIONS: 'sriov-manage -e {}',
    action.Action.MIXED_ON: 'nvidia-smi vgpu -i {} -shm 1',
    action.Action.MIXED_OFF: 'nvidia-smi vgpu -i {} -shm 0',
    action.Action.SCHEDULER: 'nvidia-smi vgpu set-scheduler-state -i {}',
    # driverctl(8): set-override writes driver_override and binds.
    action.Action.BIND_NVIDIA: 'driverctl set-override {} nvidia',
    action.Action.BIND_VFIO: 'driverctl set-override {} vfio-pci',
}
"""The command with which an operator can do a step.

Only this driver does the other steps.
"""
_MIG_STEPS = {action.Action.ENABLE_MIG, action.Action.DISABLE_MIG}


def offered(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether the host has GPUs, and a policy for each of them."""
    if not facts.host.gpus:
        yield result.warning(
            result.HOST, 'no NVIDIA GPU was found',
            'Run "lspci -d 10de:". If it lists no GPU, check the firmware '
            'settings and the slot')
    for device in sorted(
            {*map(str, facts.settings.ignored_addresses),
             *facts.settings.ignored_uuids}
            - {str(gpu.address) for gpu in facts.host.gpus}
            - {gpu.uuid.lower() for gpu in facts.host.gpus if gpu.uuid}):
        yield result.warning(
            result.HOST, f'[gpu] ignored_devices has {device}, which is no '
            'GPU of this host that can be identified',
            'Compare it with "cyborg-gpu gpu list": a GPU that it should '
            'name may be offered. Use the PCI address of a GPU whose UUID '
            'NVML does not return')
    for gpu in facts.host.gpus:
        if (facts.settings.policy_for(gpu) is None
                and not facts.settings.ignores(gpu)):
            yield result.warning(
                gpu.address, 'no policy matches it: it is not offered',
                'Add a policy to [gpu] policies, or add the GPU to [gpu] '
                'ignored_devices')


def driver(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether each GPU has the kernel driver that its mode needs."""
    # A GPU that may also be offered whole is on vfio-pci while it is idle.
    carrying = {gpu.address for gpu, governing in facts.with_vgpus()
                if policy.Mode.PASSTHROUGH not in governing.modes}
    for gpu, _ in facts.governed():
        if gpu.driver in _OTHERS:
            yield result.failure(
                gpu.address, f'it is bound to the kernel driver {gpu.driver}',
                _BLACKLIST.format(gpu.driver))
        elif gpu.address in carrying and gpu.driver != _NVIDIA:
            yield result.failure(
                gpu.address, f'it is bound to {gpu.driver or "no driver"}, '
                "and vGPUs need NVIDIA's driver",
                "Install NVIDIA's vGPU host driver, and remove the GPU from "
                'the ids option of vfio-pci in /etc/modprobe.d')
    yield from _version(facts)


def _version(facts):
    """Check that the driver supports vGPUs on this kernel."""
    kernel = facts.machine.kernel if facts.machine else None
    version = facts.host.driver_version
    if (kernel is None or kernel < _WITHOUT_MDEV
            or not any(gpu.sriov_totalvfs for gpu, _ in facts.with_vgpus())):
        return
    if version is None and facts.host.nvml_problem:
        yield result.skipped(
            result.HOST, 'whether the driver supports this kernel, because '
            'NVML does not return the driver version', 'See the "NVML" check')
    major = _MAJOR.match(version or '')
    if major and int(major[0]) < _FIRST_FOR_IT:
        yield result.failure(
            result.HOST, 'driver {} does not support vGPUs on Linux '
            '{}.{}'.format(
                version, *kernel),
            f'Install vGPU software 17 (driver {_FIRST_FOR_IT}) or later, '
            'or an earlier kernel')


def modules(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether a loaded kernel module will cause problems."""
    assert facts.machine is not None
    loaded = facts.machine.modules
    taken = {gpu.driver for gpu, _ in facts.governed()}
    for name in _OTHERS:
        if name in loaded and name not in taken and taken:
            yield result.warning(
                result.HOST, f'{name} is loaded: after a reboot it may bind a '
                'GPU before the right driver does', _BLACKLIST.format(name))
    if drivers.releases_display(facts.host.driver_version):
        return
    for gpu, governing in facts.governed():
        if (_DISPLAY in loaded and gpu.architecture == 'ampere'
                and any(step.action in _MIG_STEPS for step in _steps(
                    facts, gpu, governing))):
            yield result.warning(
                gpu.address, f'{_DISPLAY} is loaded: the GPU cannot be reset, '
                'so its MIG mode cannot be changed',
                f'Run "modprobe -r {_DISPLAY}", and blacklist it in '
                '/etc/modprobe.d; or install driver 580.105.08 or later')


def nvml(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether NVML answers and the GPUs can be read."""
    problem = facts.host.nvml_problem
    needing = ({gpu.address for gpu, _ in facts.with_vgpus()}
               | {gpu.address for gpu, _ in facts.governed()
                  if gpu.driver == _NVIDIA})
    if problem and needing:
        yield result.failure(
            result.HOST, f'NVML: {problem}',
            "Install NVIDIA's driver and load it (modprobe nvidia); after a "
            'driver upgrade, reboot or reload it')
    elif problem:
        yield result.success(
            result.HOST, f'no GPU here needs NVML ({problem})')
    for gpu, _ in facts.governed():
        if gpu.problems:
            yield _unread(gpu)
        elif condition.is_failed(gpu) and not problem:
            yield result.failure(
                gpu.address, f'it is {condition.state(gpu)}',
                'Look for NVRM and Xid in the kernel log')


def unreadable(gpu: model.Gpu) -> result.Finding:
    """Return the finding for a GPU about which NVML has no data."""
    return result.skipped(gpu.address, condition.state(gpu),
                          'See the "NVML" check')


def _unread(gpu):
    details = f'{condition.state(gpu)}: ' + '; '.join(gpu.problems)
    if 'NO_PERMISSION' in details:
        return result.warning(
            gpu.address, details, 'Run this check as the user of '
            'cyborg-agent; if it persists, see the "agent access" check')
    return result.warning(
        gpu.address, details, 'Look for NVRM and Xid in the kernel log')


def iommu(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether the IOMMU allows the GPUs to be assigned to servers."""
    needing = [(gpu, governing) for gpu, governing in facts.governed()
               if gpu.in_pci_sysfs and _needs_iommu(gpu, governing)]
    lacking = [gpu for gpu, _ in needing if gpu.iommu_group is None]
    for gpu in lacking:
        yield result.failure(
            gpu.address, 'it is in no IOMMU group, so it cannot be assigned '
            'to a server',
            'Enable VT-d or AMD-Vi in the firmware settings; on Intel, boot '
            'with intel_iommu=on')
    for gpu, governing in needing:
        if gpu in lacking or policy.WHOLE.isdisjoint(governing.modes):
            continue
        # A group of NVLink goes to one server.
        reason = passthrough.unassignable(
            gpu, gpu.nvlink_peers if policy.Mode.NVLINK in governing.modes
            else ())
        if reason:
            yield result.failure(
                gpu.address, f'it cannot be assigned to a server: {reason}',
                'Bind the other functions of its board to vfio-pci at boot '
                '(driverctl set-override); for another device, enable ACS in '
                'the firmware settings or use another slot')


def _needs_iommu(gpu, governing):
    """Whether the GPU needs an IOMMU: only mdevs on the GPU itself do not."""
    return (not policy.WHOLE.isdisjoint(governing.modes)
            or gpu.framework is not model.Framework.MDEV_PF)


def ready(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether MIG mode, SR-IOV and other settings match the policy."""
    for gpu, governing in facts.governed():
        steps = _steps(facts, gpu, governing)
        if condition.obstacle(gpu) and not condition.is_away(gpu):
            yield unreadable(gpu)
        elif policy.Mode.MIG in governing.modes and (
                gpu.visible_to_nvml and gpu.mig is None):
            yield result.failure(
                gpu.address, 'it does not support MIG',
                f'Choose other roles in [gpu_policy:{governing.name}]'
                if governing.roles else 'Choose mode vgpu or '
                f'passthrough in [gpu_policy:{governing.name}]')
        elif gpu.mig and gpu.mig.pending is not gpu.mig.enabled:
            yield result.warning(
                gpu.address, 'its MIG mode changes at its next reset',
                f'Run "nvidia-smi --gpu-reset -i {gpu.address}" while it is '
                'idle, or reboot')
        elif steps:
            yield _to_do(facts, gpu, steps)
        elif (drivers.is_vfio(gpu.driver) and gpu.bound_from is None
                and policy.Mode.PASSTHROUGH in governing.modes
                and facts.settings.clean_whole_gpus):
            yield result.skipped(
                gpu.address, 'whether a server has changed its MIG mode, ECC '
                'mode or confidential computing for good, because the '
                'operator has bound it to vfio-pci')
        if governing.mode is policy.Mode.AUTO:
            for complaint in offers.check_policy(
                    gpu, governing, facts.by_role.get(gpu.address, {})):
                yield result.warning(
                    gpu.address, complaint, 'Choose other values for '
                    f'[gpu_policy:{governing.name}], or remove the cause and '
                    'restart cyborg-agent, which then tries again')


def _to_do(facts, gpu, steps):
    details = 'does not match its policy: ' + ', '.join(
        map(str, steps))
    if facts.settings.prepare and (
            facts.settings.policies
            or [step.action for step in steps] == [
                action.Action.BIND_VFIO]):
        return result.warning(
            gpu.address, details, 'cyborg-agent does this when the GPU is '
            f'idle; "cyborg-gpu gpu prepare {gpu.address}" does it now, or '
            'says what prevents it')
    commands = ', '.join(dict.fromkeys(
        _BY_HAND[step.action].format(gpu.address) for step in steps))
    return result.failure(
        gpu.address, details, 'Set [gpu] policies and [gpu] prepare, so that '
        f'cyborg-agent does this; or run on the idle GPU: {commands}')


def _steps(facts, gpu, governing):
    """Return the steps that remain to be done."""
    return readiness.steps(gpu, readiness.wants(
        gpu, roles.governs(governing, gpu)))
