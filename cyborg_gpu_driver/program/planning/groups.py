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

"""Collect the state of the groups that a GPU is in. Pure."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition.offer import nvlink as offer_nvlink


def states(host: model.Host, groups: Iterable[nvlink.Group],
           policy_for: Callable[[model.Gpu], policies.Policy | None],
           owners: Callable[[model.PciAddress], str]
           ) -> tuple[offer_nvlink.State, ...]:
    """The groups with all facts that decide whether they are available.

    :param groups: the groups that one GPU is in.
    :param policy_for: returns the policy of a GPU.
    :param owners: returns the claims on a GPU as text; empty if none.
    """
    gpus = {gpu.address: gpu for gpu in host.gpus}

    def member(address: model.PciAddress, leader: policies.Policy | None
               ) -> offer_nvlink.Member:
        gpu = gpus.get(address)
        return offer_nvlink.Member(
            gpu, gpu is not None and policy_for(gpu) == leader,
            owners(address))

    found = []
    for group in groups:
        leader = gpus.get(group.leader)
        governing = None if leader is None else policy_for(leader)
        found.append(offer_nvlink.State(group, tuple(
            member(address, governing) for address in group.members)))
    return tuple(found)

