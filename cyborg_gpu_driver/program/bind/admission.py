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

"""Which binds are refused before anything is changed for them."""

from __future__ import annotations

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.program import cordons as cordon_keeper
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.planning import request


class Admission:
    """Refuses the binds of servers that must not be on a GPU.

    :param cloud: knows the servers' allocations and projects.
    :param cordons: knows which GPUs get no new server.
    """

    def __init__(self, cloud: services.Services,
                 cordons: cordon_keeper.CordonKeeper):
        self._cloud = cloud
        self._cordons = cordons

    def check_servers(self, address: model.PciAddress, asked: request.Request
                      ) -> None:
        """Refuse to put servers of two projects on a GPU that forbids it.

        This needs no lock, because allocations precede binds.

        :raises BindRefused: also if the servers' projects are unknown.
        """
        reason = self._cloud.mixed(address, asked.handle)
        if reason:
            raise plan.refusal(
                asked, f'GPU {address} has isolation = project, and {reason}')

    def check_cordons(self, address: model.PciAddress, asked: request.Request
                      ) -> None:
        """Refuse a bind that Placement promised just before a cordon.

        :raises BindRefused: if the GPU is cordoned.
        """
        cordons = self._cordons.of(address)
        if cordons:
            raise plan.refusal(asked, f'GPU {address} is cordoned: '
                               + cordon.text(cordons))
