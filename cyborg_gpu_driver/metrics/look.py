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

"""One GPU as the agent reports it to the exporter. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.partition.mig import geometry
from cyborg_gpu_driver.partition.offer import offer as offers
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names


def gpu_state(gpu: model.Gpu, found: Iterable[offers.Offer],
              reserved: Mapping[str, int], owned: Mapping[str, int],
              hostname: str, healthy: bool) -> state.GpuState:
    """Return the state of a GPU for the exporter.

    :param found: its offers; those that are not reported are left out.
    :param reserved: reserved units by provider. An offer whose provider is
        missing counts as wholly reserved.
    :param owned: how many of each profile are bound through Cyborg.
    :param healthy: whether no condition keeps the GPU from being offered.
    """
    free, largest = slices(gpu.mig)
    return state.GpuState(healthy, tuple(
        _offer(item, reserved.get(names.provider_uuid(
            names.provider_name(hostname, item)), item.total),
            owned.get(item.profile, 0))
        for item in found if build.reportable(item)), free, largest)


def _offer(item: offers.Offer, reserved: int, owned: int
           ) -> state.OfferState:
    return state.OfferState(
        item.mode.value, item.profile, names.resource_class(item),
        item.total, item.in_use, reserved,
        max(0, item.total - reserved - owned), item.creatable)


def slices(mig: model.Mig | None) -> tuple[int | None, int | None]:
    """Return the free slices and those of the largest new GPU instance.

    The total is the slice count of the largest profile (nvml.h: sliceCount of
    nvmlGpuInstanceProfileInfo_t).

    :returns: None, None if the GPU is not in MIG mode or was not read.
    """
    if mig is None or not mig.enabled or not mig.profiles:
        return None, None
    grid = geometry.Geometry(mig.profiles)
    occupancy = grid.occupancy_of(mig.instances)
    used = sum(known.slices for known in (
        mig.profile_by_id(item.profile_id) for item in mig.instances)
        if known is not None)
    free = max(0, max(item.slices for item in mig.profiles) - used)
    return free, max((item.slices for item in mig.profiles
                      if grid.free_placements(occupancy, item)), default=0)
