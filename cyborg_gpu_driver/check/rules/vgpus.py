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


"""Checks of how this host creates vGPUs."""

from __future__ import annotations

from collections.abc import Iterator

from cyborg_gpu_driver.check import facts as facts_module
from cyborg_gpu_driver.check import processes
from cyborg_gpu_driver.check.rules import gpus
from cyborg_gpu_driver.check.rules import result
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model

_WITHOUT_MDEV = (6, 8)
"""The first Linux where NVIDIA's driver makes no mdev on virtual functions."""
_MDEV = (model.Framework.MDEV_PF, model.Framework.MDEV_VF)
_CHOOSE = ('Either set fixed_vgpus in its policy, run "cyborg-gpu nova '
           'config" and let Nova assign the vGPUs; or start nova-compute as '
           'cyborg-gpu-nova-compute and set [gpu] nova_vfio_handles')


def way(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """How the vGPUs of each GPU are created and assigned to servers."""
    for gpu, governing in facts.with_vgpus():
        if condition.obstacle(gpu) and not condition.is_away(gpu):
            yield gpus.unreadable(gpu)
        elif gpu.framework is model.Framework.NONE:
            yield from _no_way(gpu)
        elif gpu.framework is not model.Framework.VENDOR_VFIO:
            yield result.success(
                gpu.address, 'mdev: created on demand and bound by Cyborg')
        elif facts.settings.vfio_handles:
            yield result.success(
                gpu.address, 'virtual functions without mdev: created on '
                'demand and bound by Cyborg')
        elif governing.fixed_vgpus:
            yield result.success(
                gpu.address, 'virtual functions without mdev: fixed, and '
                'assigned by Nova')
        else:
            yield result.failure(
                gpu.address, 'without mdev: neither Cyborg nor Nova assigns '
                'its virtual functions', _CHOOSE)


def _no_way(gpu):
    """Report that NVIDIA's driver supports no vGPUs on the GPU.

    Other checks report another driver and missing virtual functions.
    """
    if gpu.driver == 'nvidia' and (not gpu.sriov_totalvfs or gpu.vfs):
        yield result.failure(
            gpu.address, 'its driver does not support vGPUs',
            "Replace it with NVIDIA's vGPU host driver")


def kernel(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether a GPU depends on mdev on a kernel without mdev."""
    assert facts.machine is not None
    for gpu, governing in facts.with_vgpus():
        running = facts.machine.kernel
        if (running is None or running < _WITHOUT_MDEV
                or not gpu.sriov_totalvfs
                or gpu.framework is not model.Framework.NONE):
            continue
        if facts.settings.vfio_handles or governing.fixed_vgpus:
            continue
        yield result.warning(
            gpu.address, 'on Linux {}.{} its vGPUs have no '
            'mdev'.format(*running), _CHOOSE)


def sriov_manage(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether virtual functions can be created, also after a reboot."""
    if facts.programs(facts.sriov_manage) is not False:
        return
    for gpu, _ in facts.with_vgpus():
        if not gpu.sriov_totalvfs:
            continue
        details = f'{facts.sriov_manage} cannot be run'
        advice = "Install NVIDIA's vGPU host driver"
        if gpu.vfs:
            yield result.warning(gpu.address, f'{details}: its virtual '
                                 'functions are lost at a reboot', advice)
        else:
            yield result.failure(gpu.address, details, advice)


def mdevctl(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether libvirt can define and start mdevs."""
    mdevs = any(gpu.framework in _MDEV for gpu, _ in facts.with_vgpus())
    if mdevs and facts.programs(facts.mdevctl) is False:
        yield result.warning(
            result.HOST, f'{facts.mdevctl} cannot be run: libvirt defines and '
            'starts mdevs with it', 'Install the package mdevctl')


def start_command(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether nova-compute runs as [gpu] nova_vfio_handles requires."""
    assert facts.machine is not None
    on_demand = facts.settings.vfio_handles
    seen = facts.machine.running
    running = seen.nova_commands if seen else None
    if not on_demand:
        return
    if not running:
        yield result.warning(
            result.HOST, '[gpu] nova_vfio_handles is true, and no '
            'nova-compute process was found',
            f'Start it as {processes.OURS}')
    elif processes.STOCK in running:
        yield result.failure(
            result.HOST, '[gpu] nova_vfio_handles is true, but nova-compute '
            'runs without the patches of this driver: servers with a vGPU '
            'without mdev will fail to start',
            f'Start it as {processes.OURS}, or '
            'set nova_vfio_handles to false')
    else:
        yield result.success(
            result.HOST, f'nova-compute runs as {processes.OURS}')
