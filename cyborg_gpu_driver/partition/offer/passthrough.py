# SPDX-License-Identifier: Apache-2.0

"""What a GPU in passthrough mode offers. Pure."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition.offer import offer


def offers(gpu: model.Gpu, policy: policies.Policy,
           must_be_bound: bool = False) -> Iterator[offer.Offer]:
    """Yield the offer of the whole GPU; a carved-up GPU has a problem.

    If libvirt cannot take the GPU, or processes of this machine use it, the
    GPU is offered, but none can be created now. That state ends at some
    time, and the handle must remain.

    :param must_be_bound: whether a server needs it bound to vfio-pci now;
        otherwise this shows what the GPU could offer.
    """
    problem = readiness.carved_up(gpu)
    busy = '' if problem else busy_with(gpu, must_be_bound)
    if not problem and gpu.nvlink_open and not policy.nvlink_not_isolated:
        busy = (f'{gpu.nvlink_open}, so its NVLinks may reach the GPUs of '
                'other servers: use mode nvlink with FABRIC_MODE=1, or set '
                'nvlink_not_isolated in the policy')
    yield offer.Offer(
        gpu=gpu.address, policy=policy.name, mode=policy.mode,
        profile=offer.PASSTHROUGH, total=1,
        creatable=0 if problem or busy else 1,
        parents=(gpu.address,), problem=problem, busy=busy)


def busy_with(gpu: model.Gpu, must_be_bound: bool = False,
              together: Collection[model.PciAddress] = ()) -> str:
    """Return why a whole GPU cannot be used for the moment; or ``''``.

    :param together: GPUs that the same server gets.
    """
    if gpu.processes:
        return f'{gpu.processes} process(es) of this machine use it'
    group = unassignable(gpu, together)
    if group:
        return group
    if not must_be_bound or whole.is_vfio(gpu.driver):
        return ''
    return (f'bound to {gpu.driver}; it will be offered when it is bound to '
            'vfio-pci' if gpu.driver else 'not bound to vfio-pci yet')


def unassignable(gpu: model.Gpu,
                 together: Collection[model.PciAddress] = ()) -> str:
    """Return why its IOMMU group keeps a GPU from guests; or ``''``.

    :param together: GPUs that the same server gets.
    """
    return whole.obstacle(
        str(gpu.address), gpu.iommu_group, gpu.neighbours,
        follow=not whole.is_vfio(gpu.driver), together=[*map(str, together)])
