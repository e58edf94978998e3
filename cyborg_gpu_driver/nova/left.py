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


"""GPUs whose vGPUs Nova's own PCI code hands out, and the vGPUs on them."""

from __future__ import annotations

from collections.abc import Mapping

import os_traits

from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import pci_config
from cyborg_gpu_driver.partition import fixed
from cyborg_gpu_driver.partition import policy as policies_module
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.report.content import traits

_MODES = (policies_module.Mode.VGPU, policies_module.Mode.MIG)


def is_left(gpu: model.Gpu, policy: policies_module.Policy,
            settings: policies.Settings) -> bool:
    """Whether Nova, not Cyborg, hands out the GPU's virtual functions."""
    return (gpu.framework is model.Framework.VENDOR_VFIO
            and policy.mode in _MODES and not settings.vfio_handles)


def assigned(gpu: model.Gpu, policy: policies_module.Policy,
             remembered: Mapping[model.PciAddress, str],
             live_migratable: bool = False) -> tuple[pci_config.Assigned, ...]:
    """Return the fixed vGPUs of one GPU, whether they exist yet or not.

    :param remembered: see :func:`cyborg_gpu_driver.partition.fixed.plan`.
    :param live_migratable: whether the vGPUs can migrate, by NVML.
    :raises FixedVgpusRefused: if the GPU cannot carry what the policy says.
    """
    return tuple(
        _assigned(gpu, policy, item, live_migratable)
        for item in fixed.plan(gpu, policy, remembered).vgpus)


def _assigned(gpu, policy, assignment, live_migratable):
    # Cyborg would give the type the same resource class and traits.
    offer = offers.Offer(
        gpu=gpu.address, policy=policy.name, mode=policy.mode,
        profile=assignment.name, total=1,
        vgpu_type_id=assignment.type_id)
    return pci_config.Assigned(
        function=assignment.function, gpu=gpu.address,
        vendor_id=gpu.vendor_id, product_id=gpu.device_id,
        type_name=assignment.name,
        resource_class=names.resource_class(offer),
        traits=tuple(trait for trait in traits.traits(gpu, offer)
                     if trait != os_traits.OWNER_CYBORG),
        live_migratable=live_migratable)
