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

"""Check the arguments of Cyborg's RPC before they are used."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_name


@dataclasses.dataclass(frozen=True)
class Request:
    """A bind or unbind that cyborg-conductor or cyborg-api requests.

    ``function`` is the handle's PCI function (the GPU or a VF of it).
    ``handle`` is the attach handle's UUID, which is also the mdev's UUID.
    """

    function: model.PciAddress
    mdev_type: str
    handle: str

    @property
    def is_group(self) -> bool:
        """Whether the request is for a group; ``function`` is its first GPU.
        """
        return vgpu_name.group_size(self.mdev_type) is not None

    @property
    def mdev(self) -> spec.VgpuSpec:
        """The mdev of the handle, if the GPU's framework makes mdevs."""
        return spec.VgpuSpec(self.function, self.mdev_type, self.handle)


def parse(pci_addr: str, asked_type: str, ah_uuid: str) -> Request:
    """Check three strings from RPC.

    :param pci_addr: ``0000:3b:00.4``.
    :param asked_type: mdev type, ``nvidia-474``, or ``nvlink-2`` for a group
        of two GPUs.
    :param ah_uuid: the attach handle's UUID, lower case with dashes.
    :raises InvalidValue: naming the string that is malformed.
    """
    return Request(function=model.PciAddress.parse(pci_addr),
                   mdev_type=vgpu_name.asked_type(asked_type),
                   handle=vgpu_name.handle(ah_uuid))
