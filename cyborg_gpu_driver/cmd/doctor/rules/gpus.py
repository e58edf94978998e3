# SPDX-License-Identifier: Apache-2.0

"""Checks of the GPUs, their driver, the kernel and the fabric manager."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cyborg_gpu_driver.cmd.doctor import facts as facts_module
from cyborg_gpu_driver.cmd.doctor.rules import container
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.partition.offer import whole as offer_whole

# Checks of the NVSwitches and NVIDIA's fabric manager.

_NVIDIA = 'nvidia'
_ANY = ('0.0.0.0', '::')
"""Addresses that include each address of the host."""
_CONFIG = ('Set FABRIC_MODE={0} in fabricmanager.cfg and restart the unit '
           'nvidia-fabricmanager while no server uses a GPU')
_START = ('Run "systemctl enable --now nvidia-fabricmanager" and read its '
          'log with "journalctl -u nvidia-fabricmanager"')


def fabric_manager(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether the fabric manager supports the modes of the GPUs.

    From the fabric manager's user guide: CUDA starts on a GPU on NVSwitches
    only if the GPU's NVLinks are configured. The fabric manager and the
    driver must have the same version. A partition must be active before a
    server with a vGPU starts, even with a single vGPU. MIG slices use no
    NVLink.
    """
    fabric = facts.fabric
    modes = fabric and _modes(facts, fabric)
    if not fabric or not modes:
        return
    yield from _port(facts, fabric)
    if fabric.installed is False:
        yield finding.error(
            None, 'the machine has NVSwitches, but no fabric manager '
            'is installed: CUDA does not start on its GPUs',
            'Install nvidia-fabricmanager of the same version as the driver')
        return
    if not fabric.running:
        yield finding.error(
            None, 'the fabric manager does not run: CUDA does not '
            'start on GPUs on NVSwitches', _START)
        return
    yield from _fabric_version(facts, fabric)
    yield from _mode(fabric, modes)
    yield from _isolation(facts)
    yield from _partitions(facts, fabric)


def _port(facts, fabric):
    """Whether the fabric manager and cyborg-api want the same port.

    Both have 127.0.0.1:6666 by default (FM_CMD_PORT_NUMBER of nv_fm_types.h,
    cyborg/conf/api.py of Cyborg 17). The one that starts second fails.
    """
    if (facts.cyborg is None or fabric.address is None
            or fabric.address.startswith('/')):
        return
    host, _, number = fabric.address.rpartition(':')
    listens, port = facts.cyborg.api
    if int(number) != port or listens not in (host, *_ANY):
        return
    running = facts.machine and facts.machine.running
    if running and services.API in running.commands:
        yield finding.error(
            None, 'the fabric manager and cyborg-api both listen on '
            f'{fabric.address}: only one of them can run on this host',
            'Set FM_CMD_UNIX_SOCKET_PATH or '
            'FM_CMD_PORT_NUMBER in fabricmanager.cfg, or [api] port in '
            'cyborg.conf, and restart both')


def _modes(facts, fabric):
    """Return the modes of the GPUs that may be on the NVSwitches."""
    return {mode for gpu, governing in facts.governed()
            for mode in governing.modes
            if gpu.address in fabric.modules or gpu.driver != _NVIDIA}


def _fabric_version(facts, fabric):
    driver = facts.host.driver_version
    if fabric.version is None:
        yield finding.unknown(
            None, 'whether the fabric manager has the same version as '
            'the driver', 'Run "nv-fabricmanager --version" as root')
    elif driver and fabric.version != driver:
        yield finding.error(
            None, f'the fabric manager has version {fabric.version} '
            f'and the driver has version {driver}',
            f'Install nvidia-fabricmanager {driver} and restart its unit')


def _mode(fabric, modes):
    """Check the mode of the board, which allows one kind of partition."""
    if fabric.mode is None:
        yield finding.unknown(
            None, f'the mode of the fabric manager: '
            f'{fabric.mode_problem}',
            'Let the user of cyborg-agent read the file')
        return
    if (policy.Mode.VGPU in modes
            and fabric.mode is not model.FabricMode.VGPU):
        yield finding.error(
            None, f'FABRIC_MODE is {fabric.mode.value}: a vGPU that '
            'takes a whole GPU does not start CUDA (cuInit error 802)',
            _CONFIG.format(model.FabricMode.VGPU.value))
    if (policy.Mode.NVLINK in modes
            and fabric.mode is not model.FabricMode.SHARED_NVSWITCH):
        yield finding.error(
            None, f'FABRIC_MODE is {fabric.mode.value}: no partition '
            'of whole GPUs can be activated for mode nvlink',
            _CONFIG.format(model.FabricMode.SHARED_NVSWITCH.value))
    if (policy.Mode.PASSTHROUGH in modes
            and fabric.mode is model.FabricMode.VGPU):
        yield finding.warning(
            None, f'FABRIC_MODE is {fabric.mode.value}: a whole GPU '
            'starts CUDA only in a server that disables NVLink',
            _CONFIG.format(model.FabricMode.SHARED_NVSWITCH.value)
            + ', or disable NVLink in the image '
            '(NVreg_NvLinkDisable=1 for the module nvidia)')


def _isolation(facts):
    """Check that no server reaches the GPUs of another one through NVLink."""
    for gpu, governing in facts.governed():
        if not gpu.nvlink_open or (policy.Mode.PASSTHROUGH
                                   not in governing.modes):
            continue
        if governing.nvlink_not_isolated:
            yield finding.warning(
                gpu.address, f'{gpu.nvlink_open}, and nvlink_not_isolated '
                f'is set in [gpu_policy:{governing.name}]: its NVLinks may '
                'reach the GPUs of other servers',
                'Disable NVLink in the image (NVreg_NvLinkDisable=1 for the '
                'module nvidia), and trust the servers')
        else:
            yield finding.error(
                gpu.address, f'{gpu.nvlink_open}: its NVLinks may reach the '
                'GPUs of other servers, so it is not offered alone',
                'Use mode nvlink. '
                + _CONFIG.format(model.FabricMode.SHARED_NVSWITCH.value))


def _partitions(facts, fabric):
    if fabric.mode in (None, model.FabricMode.BARE_METAL):
        return
    if fabric.problem:
        yield finding.error(
            None, 'the partitions cannot be read: ' + fabric.problem,
            'See "NVSwitch boards" in the operator guide')
        return
    for name in fabric.failed:
        yield finding.error(name, 'its NVLinks have failed',
                            'Replace the GPU or the board')
    for gpu, governing in facts.governed():
        if (policy.Mode.VGPU in governing.modes
                and gpu.address in fabric.modules
                and fabric.single(gpu.address) is None):
            yield finding.error(
                gpu.address, 'the fabric manager has no partition for this '
                'GPU alone', 'Disable the MIG mode of the GPU and reboot; '
                'otherwise read the log of the fabric manager')


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
    change.Action.DISABLE_FUNCTIONS: 'sriov-manage -d {}',
    change.Action.ENABLE_MIG: 'nvidia-smi -i {} -mig 1',
    change.Action.DISABLE_MIG: 'nvidia-smi -i {} -mig 0',
    change.Action.ENABLE_FUNCTIONS: 'sriov-manage -e {}',
    change.Action.MIXED_ON: 'nvidia-smi vgpu -i {} -shm 1',
    change.Action.MIXED_OFF: 'nvidia-smi vgpu -i {} -shm 0',
    change.Action.SCHEDULER: 'nvidia-smi vgpu set-scheduler-state -i {}',
    # driverctl(8): set-override writes driver_override and binds.
    change.Action.BIND_NVIDIA: 'driverctl set-override {} nvidia',
    change.Action.BIND_VFIO: 'driverctl set-override {} vfio-pci',
}
"""The command with which an operator can do a step.

Only this driver does the other steps.
"""
_MIG_STEPS = {change.Action.ENABLE_MIG, change.Action.DISABLE_MIG}


def offered(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether the host has GPUs, and a policy for each of them."""
    if not facts.host.gpus:
        yield finding.warning(
            None, 'no NVIDIA GPU was found',
            'Run "lspci -d 10de:". If it lists no GPU, check the firmware '
            'settings and the slot')
    for device in sorted(
            {*map(str, facts.settings.ignored_addresses),
             *facts.settings.ignored_uuids}
            - {str(gpu.address) for gpu in facts.host.gpus}
            - {gpu.uuid.lower() for gpu in facts.host.gpus if gpu.uuid}):
        yield finding.warning(
            None, f'[gpu] ignored_devices has {device}, which is no '
            'GPU of this host that can be identified',
            'Compare it with "cyborg-gpu gpu list": a GPU that it should '
            'name may be offered. Use the PCI address of a GPU whose UUID '
            'NVML does not return')
    for gpu in facts.host.gpus:
        if (facts.settings.policy_for(gpu) is None
                and not facts.settings.ignores(gpu)):
            yield finding.warning(
                gpu.address, 'no policy matches it: it is not offered',
                'Add a policy to [gpu] policies, or add the GPU to [gpu] '
                'ignored_devices')


def driver(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether each GPU has the kernel driver that its mode needs."""
    # A GPU that may also be offered whole is on vfio-pci while it is idle.
    carrying = {gpu.address for gpu, governing in facts.with_vgpus()
                if policy.Mode.PASSTHROUGH not in governing.modes}
    for gpu, _ in facts.governed():
        if gpu.driver in _OTHERS:
            yield finding.error(
                gpu.address, f'it is bound to the kernel driver {gpu.driver}',
                _BLACKLIST.format(gpu.driver))
        elif gpu.address in carrying and gpu.driver != _NVIDIA:
            yield finding.error(
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
        yield finding.unknown(
            None, 'whether the driver supports this kernel, because '
            'NVML does not return the driver version',
            'See the finding about NVML')
    major = _MAJOR.match(version or '')
    if major and int(major[0]) < _FIRST_FOR_IT:
        yield finding.error(
            None, 'driver {} does not support vGPUs on Linux '
            '{}.{}'.format(
                version, *kernel),
            f'Install vGPU software 17 (driver {_FIRST_FOR_IT}) or later, '
            'or an earlier kernel')


def modules(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether a loaded kernel module will cause problems."""
    loaded = facts.machine.modules
    taken = {gpu.driver for gpu, _ in facts.governed()}
    for name in _OTHERS:
        if name in loaded and name not in taken and taken:
            yield finding.warning(
                None, f'{name} is loaded: after a reboot it may bind a '
                'GPU before the right driver does', _BLACKLIST.format(name))
    if whole.releases_display(facts.host.driver_version):
        return
    for gpu, governing in facts.governed():
        if (_DISPLAY in loaded and gpu.architecture == 'ampere'
                and any(step.action in _MIG_STEPS for step in _steps(
                    facts, gpu, governing))):
            yield finding.warning(
                gpu.address, f'{_DISPLAY} is loaded: the GPU cannot be reset, '
                'so its MIG mode cannot be changed',
                f'Run "modprobe -r {_DISPLAY}", and blacklist it in '
                '/etc/modprobe.d; or install driver 580.105.08 or later')


def nvml(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether NVML answers and the GPUs can be read."""
    problem = facts.host.nvml_problem
    needing = ({gpu.address for gpu, _ in facts.with_vgpus()}
               | {gpu.address for gpu, _ in facts.governed()
                  if gpu.driver == _NVIDIA})
    if problem and needing:
        yield finding.error(
            None, f'NVML: {problem}', container.library(facts)
            or "Install NVIDIA's driver and load it (modprobe nvidia); after "
            'a driver upgrade, reboot or reload it')
    for gpu, _ in facts.governed():
        if gpu.problems:
            yield _unread(gpu)
        elif condition.is_failed(gpu) and not problem:
            yield finding.error(
                gpu.address, f'it is {condition.state(gpu)}',
                'Look for NVRM and Xid in the kernel log')


def _unread(gpu):
    details = f'{condition.state(gpu)}: ' + '; '.join(gpu.problems)
    if 'NO_PERMISSION' in details:
        return finding.warning(
            gpu.address, details, 'Run the doctor as the user of '
            'cyborg-agent, which says what that user may not open')
    return finding.warning(
        gpu.address, details, 'Look for NVRM and Xid in the kernel log')


def iommu(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether the IOMMU allows the GPUs to be assigned to servers."""
    needing = [(gpu, governing) for gpu, governing in facts.governed()
               if _needs_iommu(gpu, governing)]
    lacking = [gpu for gpu, _ in needing if gpu.iommu_group is None]
    for gpu in lacking:
        yield finding.error(
            gpu.address, 'it is in no IOMMU group, so it cannot be assigned '
            'to a server',
            'Enable VT-d or AMD-Vi in the firmware settings; on Intel, boot '
            'with intel_iommu=on')
    for gpu, governing in needing:
        if gpu in lacking or policy.WHOLE.isdisjoint(governing.modes):
            continue
        # A group of NVLink goes to one server.
        reason = offer_whole.unassignable(
            gpu, gpu.nvlink_peers if policy.Mode.NVLINK in governing.modes
            else ())
        if reason:
            yield finding.error(
                gpu.address, f'it cannot be assigned to a server: {reason}',
                'Bind the other functions of its board to vfio-pci at boot '
                '(driverctl set-override); for another device, enable ACS in '
                'the firmware settings or use another slot')


def _needs_iommu(gpu, governing):
    """Whether the GPU needs an IOMMU: only mdevs on the GPU itself do not."""
    return (not policy.WHOLE.isdisjoint(governing.modes)
            or gpu.framework is not model.Framework.MDEV_PF)


def ready(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether MIG mode, SR-IOV and other settings match the policy."""
    for gpu, governing in facts.governed():
        steps = _steps(facts, gpu, governing)
        if condition.is_failed(gpu):
            continue  # Another check reports this.
        if policy.Mode.MIG in governing.modes and (
                gpu.visible_to_nvml and gpu.mig is None):
            yield finding.error(
                gpu.address, 'it does not support MIG',
                f'Choose other roles in [gpu_policy:{governing.name}]'
                if governing.roles else 'Choose mode vgpu or '
                f'passthrough in [gpu_policy:{governing.name}]')
        elif gpu.mig and gpu.mig.pending is not gpu.mig.enabled:
            yield finding.warning(
                gpu.address, 'its MIG mode changes at its next reset',
                f'Run "nvidia-smi --gpu-reset -i {gpu.address}" while it is '
                'idle, or reboot')
        elif steps:
            yield _to_do(facts, gpu, steps)
        if governing.mode is policy.Mode.AUTO:
            for complaint in offers.check_policy(
                    gpu, governing, facts.by_role.get(gpu.address, {})):
                yield finding.warning(
                    gpu.address, complaint, 'Choose other values for '
                    f'[gpu_policy:{governing.name}], or remove the cause and '
                    'restart cyborg-agent, which then tries again')


def _to_do(facts, gpu, steps):
    details = 'does not match its policy: ' + ', '.join(
        map(str, steps))
    if facts.settings.prepare and (
            facts.settings.policies
            or [step.action for step in steps] == [
                change.Action.BIND_VFIO]):
        return finding.warning(
            gpu.address, details, 'cyborg-agent does this when the GPU is '
            f'idle; "cyborg-gpu gpu prepare {gpu.address}" does it now, or '
            'says what prevents it')
    commands = ', '.join(dict.fromkeys(
        _BY_HAND[step.action].format(gpu.address) for step in steps))
    return finding.error(
        gpu.address, details, 'Set [gpu] policies and [gpu] prepare, so that '
        f'cyborg-agent does this; or run on the idle GPU: {commands}')


def _steps(facts, gpu, governing):
    """Return the steps that remain to be done."""
    return readiness.steps(gpu, readiness.wants(
        gpu, roles.governs(governing, gpu)))


# Checks of how this host creates vGPUs.

_MDEV = (model.Framework.MDEV_PF, model.Framework.MDEV_VF)
_VGPU_MODES = frozenset({policy.Mode.VGPU, policy.Mode.MIG})


def way(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether NVIDIA's driver supports vGPUs on the GPUs that need them.

    Other checks report another driver and missing virtual functions.
    """
    for gpu, _ in facts.with_vgpus():
        if (gpu.framework is model.Framework.NONE
                and not condition.is_failed(gpu) and gpu.driver == _NVIDIA
                and (not gpu.sriov_totalvfs or gpu.vfs)):
            yield finding.error(
                gpu.address, 'its driver does not support vGPUs',
                "Replace it with NVIDIA's vGPU host driver")


def sriov_manage(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether virtual functions can be created, also after a reboot."""
    if facts.programs(platform.SRIOV_MANAGE) is not False:
        return
    for gpu, _ in facts.with_vgpus():
        if not gpu.sriov_totalvfs:
            continue
        details = f'{platform.SRIOV_MANAGE} cannot be run'
        advice = "Install NVIDIA's vGPU host driver"
        if gpu.vfs:
            yield finding.warning(gpu.address, f'{details}: its virtual '
                                  'functions are lost at a reboot', advice)
        else:
            yield finding.error(gpu.address, details, advice)


def mdevctl(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether libvirt can define and start mdevs."""
    mdevs = any(gpu.framework in _MDEV for gpu, _ in facts.with_vgpus())
    if mdevs and facts.programs(platform.MDEVCTL) is False:
        yield finding.warning(
            None, f'{platform.MDEVCTL} cannot be run: libvirt defines and '
            'starts mdevs with it', 'Install the package mdevctl')


def start_command(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether nova-compute has the patches that the GPUs need."""
    needing = [str(gpu.address) for gpu, governing in facts.governed()
               if _needs_patches(facts, gpu, governing)]
    if not needing:
        return
    running = facts.machine and facts.machine.running
    action = f'Start nova-compute as {services.OURS}'
    if facts.host.nova_unpatched:
        yield finding.error(
            None, 'nova-compute runs without the patches of this driver, so '
            'vGPUs without mdev and groups of GPUs are not offered: '
            + ', '.join(needing),
            f'{action}, or set fixed_vgpus and run "cyborg-gpu nova config"')
    elif facts.machine and not (running and running.nova_commands):
        yield finding.warning(
            None, 'no nova-compute process was found. Without the patches of '
            'this driver, servers with a vGPU without mdev or a group of GPUs '
            'fail to start', action)


def _needs_patches(facts, gpu, governing):
    """Whether only a nova-compute with our patches attaches what is offered.

    On Linux 6.8 or later, this is known before the GPU has virtual functions.
    """
    if policy.Mode.NVLINK in governing.modes:
        return True
    kernel = facts.machine.kernel if facts.machine else None
    return (not _VGPU_MODES.isdisjoint(governing.modes)
            and not governing.fixed_vgpus
            and (gpu.framework is model.Framework.VENDOR_VFIO
                 or gpu.framework is model.Framework.NONE
                 and bool(gpu.sriov_totalvfs)
                 and kernel is not None and kernel >= _WITHOUT_MDEV))
