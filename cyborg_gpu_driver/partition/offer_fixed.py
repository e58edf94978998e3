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

"""What a GPU offers whose fixed vGPUs Nova can take from Cyborg. Pure.

For a Nova that leaves it to a handle whether libvirt manages the function:
then the functions of ``fixed_vgpus`` are PCI handles like a whole GPU, and
nothing is made when one is bound.
"""

from __future__ import annotations

from collections.abc import Iterator

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import offer
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import vgpu_types


def offers(gpu: model.Gpu, policy: policies.Policy) -> Iterator[offer.Offer]:
    """One offer for each type of ``fixed_vgpus``, with its functions."""
    types = vgpu_types.of_mode(gpu, policy.mode)
    if not policy.fixed_vgpus:
        yield offer.nothing(gpu, policy, policy.mode.value,
                            f'policy {policy.name} names no fixed_vgpus')
    for name, number in policy.fixed_vgpus:
        entry = next((entry for entry in types if entry.is_called(name)),
                     None)
        if entry is None:
            yield offer.nothing(gpu, policy, name,
                                vgpu_types.unknown(types, name))
            continue
        made = tuple(vgpu.function for vgpu in gpu.vgpus
                     if vgpu.type_id == entry.type_id)[:number]
        problem = ('' if len(made) == number else
                   f'{len(made)} of {number} are made yet')
        yield offer.Offer(
            gpu=gpu.address, policy=policy.name, mode=policy.mode,
            profile=entry.name, total=number,
            creatable=0 if problem else number, vgpu_type_id=entry.type_id,
            parents=made, framework=gpu.framework, as_made=True,
            framebuffer_mib=entry.framebuffer_mib, problem=problem)
