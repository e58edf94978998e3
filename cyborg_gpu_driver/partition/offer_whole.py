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

"""What a GPU offers as a whole. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import offer
from cyborg_gpu_driver.partition import policy as policies


def offers(gpu: model.Gpu, policy: policies.Policy
           ) -> Iterator[offer.Offer]:
    """The whole GPU: never one that is carved up.

    A GPU on which processes of this machine run is an offer, but none that
    can be had now: they will end some time, and its handle must stay.
    """
    problem = _carved_up(gpu)
    busy = (f'{gpu.processes} process(es) of this machine use it'
            if gpu.processes and not problem else '')
    yield offer.Offer(
        gpu=gpu.address, policy=policy.name, mode=policy.mode,
        profile=offer.WHOLE, total=1, creatable=0 if problem or busy else 1,
        parents=(gpu.address,), problem=problem, busy=busy)


def _carved_up(gpu):
    if not gpu.in_pci_sysfs:
        return 'not on the PCI bus of this machine (WSL 2)'
    if gpu.physfn is not None:
        return f'a virtual function of {gpu.physfn}'
    if gpu.mig is not None and gpu.mig.enabled:
        return 'carved up: MIG mode is on'
    if gpu.vgpus:
        return f'carved up: {len(gpu.vgpus)} vGPU(s) on it'
    if gpu.vfs or gpu.sriov_numvfs:
        return (f'carved up: {len(gpu.vfs) or gpu.sriov_numvfs} virtual '
                'function(s) enabled')
    return ''
