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
"""Checks of the NVSwitches and NVIDIA's fabric manager."""

from __future__ import annotations

from collections.abc import Iterator

from cyborg_gpu_driver.check import facts as facts_module
from cyborg_gpu_driver.check import processes
from cyborg_gpu_driver.check.rules import result
from cyborg_gpu_driver.host.snapshot import fabric as fabric_module
from cyborg_gpu_driver.partition import policy

_NVIDIA = 'nvidia'
_ANY = ('0.0.0.0', '::')
"""Addresses that include each address of the host."""
_CONFIG = ('Set FABRIC_MODE={0} in fabricmanager.cfg and restart the unit '
           'nvidia-fabricmanager while no server uses a GPU')
_START = ('Run "systemctl enable --now nvidia-fabricmanager" and read its '
          'log with "journalctl -u nvidia-fabricmanager"')


def manager(facts: facts_module.Facts) -> Iterator[result.Finding]:
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
        yield result.failure(
            result.HOST, 'the machine has NVSwitches, but no fabric manager '
            'is installed: CUDA does not start on its GPUs',
            'Install nvidia-fabricmanager of the same version as the driver')
        return
    if not fabric.running:
        yield result.failure(
            result.HOST, 'the fabric manager does not run: CUDA does not '
            'start on GPUs on NVSwitches', _START)
        return
    yield from _version(facts, fabric)
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
    text = ('the fabric manager and cyborg-api both listen on '
            f'{fabric.address}: only one of them can run on this host')
    running = facts.machine and facts.machine.running
    if running and processes.API in running.commands:
        yield result.failure(
            result.HOST, text, 'Set FM_CMD_UNIX_SOCKET_PATH or '
            'FM_CMD_PORT_NUMBER in fabricmanager.cfg, or [api] port in '
            'cyborg.conf, and restart both')
    else:
        yield result.success(result.HOST, text)


def _modes(facts, fabric):
    """Return the modes of the GPUs that may be on the NVSwitches."""
    return {mode for gpu, governing in facts.governed()
            for mode in governing.modes
            if gpu.address in fabric.modules or gpu.driver != _NVIDIA}


def _version(facts, fabric):
    driver = facts.host.driver_version
    if fabric.version is None:
        yield result.skipped(
            result.HOST, 'whether the fabric manager has the same version as '
            'the driver', 'Run "nv-fabricmanager --version" as root')
    elif driver and fabric.version != driver:
        yield result.failure(
            result.HOST, f'the fabric manager has version {fabric.version} '
            f'and the driver has version {driver}',
            f'Install nvidia-fabricmanager {driver} and restart its unit')


def _mode(fabric, modes):
    """Check the mode of the board, which allows one kind of partition."""
    if fabric.mode is None:
        yield result.skipped(
            result.HOST, f'the mode of the fabric manager: '
            f'{fabric.mode_problem}',
            'Let the user of cyborg-agent read the file')
        return
    if (policy.Mode.VGPU in modes
            and fabric.mode is not fabric_module.Mode.VGPU):
        yield result.failure(
            result.HOST, f'FABRIC_MODE is {fabric.mode.value}: a vGPU that '
            'takes a whole GPU does not start CUDA (cuInit error 802)',
            _CONFIG.format(fabric_module.Mode.VGPU.value))
    if (policy.Mode.NVLINK in modes
            and fabric.mode is not fabric_module.Mode.SHARED_NVSWITCH):
        yield result.failure(
            result.HOST, f'FABRIC_MODE is {fabric.mode.value}: no partition '
            'of whole GPUs can be activated for mode nvlink',
            _CONFIG.format(fabric_module.Mode.SHARED_NVSWITCH.value))
    if (policy.Mode.PASSTHROUGH in modes
            and fabric.mode is fabric_module.Mode.VGPU):
        yield result.warning(
            result.HOST, f'FABRIC_MODE is {fabric.mode.value}: a whole GPU '
            'starts CUDA only in a server that disables NVLink',
            _CONFIG.format(fabric_module.Mode.SHARED_NVSWITCH.value)
            + ', or disable NVLink in the image '
            '(NVreg_NvLinkDisable=1 for the module nvidia)')


def _isolation(facts):
    """Check that no server reaches the GPUs of another one through NVLink."""
    for gpu, governing in facts.governed():
        if not gpu.nvlink_open or (policy.Mode.PASSTHROUGH
                                   not in governing.modes):
            continue
        if governing.nvlink_not_isolated:
            yield result.warning(
                gpu.address, f'{gpu.nvlink_open}, and nvlink_not_isolated '
                f'is set in [gpu_policy:{governing.name}]: its NVLinks may '
                'reach the GPUs of other servers',
                'Disable NVLink in the image (NVreg_NvLinkDisable=1 for the '
                'module nvidia), and trust the servers')
        else:
            yield result.failure(
                gpu.address, f'{gpu.nvlink_open}: its NVLinks may reach the '
                'GPUs of other servers, so it is not offered alone',
                'Use mode nvlink. '
                + _CONFIG.format(fabric_module.Mode.SHARED_NVSWITCH.value))


def _partitions(facts, fabric):
    if fabric.mode in (None, fabric_module.Mode.BARE_METAL):
        return
    if fabric.problem:
        yield result.failure(
            result.HOST, 'the partitions cannot be read: ' + fabric.problem,
            'See "NVSwitch boards" in the operator guide')
        return
    for name in fabric.failed:
        yield result.failure(name, 'its NVLinks have failed',
                             'Replace the GPU or the board')
    for gpu, governing in facts.governed():
        if (policy.Mode.VGPU in governing.modes
                and gpu.address in fabric.modules
                and fabric.single(gpu.address) is None):
            yield result.failure(
                gpu.address, 'the fabric manager has no partition for this '
                'GPU alone', 'Disable the MIG mode of the GPU and reboot; '
                'otherwise read the log of the fabric manager')
