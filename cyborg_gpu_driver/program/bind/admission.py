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

import collections
import threading
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import threads
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.program import cordons as cordon_keeper
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.planning import request

LOG = logging.getLogger(__name__)

_SECONDS = 5.0
"""How long a bind waits for Placement's answer."""


class Admission:
    """Refuses the binds of servers that must not be on a GPU.

    Cyborg does not tell the driver which server a handle is for. So each
    bound handle counts for one unit that a server has in Placement. A bind
    is refused if no unit is left: it has no allocation. Handles that were
    bound before this process started, or whose servers are gone, count for
    none.

    :param host: the state of the machine.
    :param cloud: knows the servers' allocations and projects.
    :param cordons: knows which GPUs get no new server.
    """

    def __init__(self, host: live.LiveHost, cloud: services.Services,
                 cordons: cordon_keeper.CordonKeeper):
        self._host = host
        self._cloud = cloud
        self._cordons = cordons
        self._mutex = threading.Lock()
        self._units: dict[str, str] = {}
        """By handle: the server and provider that its bind counts for."""
        self._stuck: threading.Thread | None = None
        """A request that Placement has not answered in time."""
        self._said = log_once.LogOnce()

    def check_servers(self, address: model.PciAddress, asked: request.Request
                      ) -> None:
        """Refuse the bind of a server that must not have its handle.

        The server needs an allocation, and no other project may have a part
        of a GPU that forbids it. This needs no lock, because allocations
        precede binds.

        :raises BindRefused: also if the projects matter and are unknown.
        """
        reason = self._cloud.mixed(address, asked.handle)
        if reason:
            raise plan.refusal(
                asked, f'GPU {address} has isolation = project, and {reason}')
        self._check_allocation(address, asked)

    def check_cordons(self, address: model.PciAddress, asked: request.Request
                      ) -> None:
        """Refuse a bind that Placement promised just before a cordon.

        :raises BindRefused: if the GPU is cordoned.
        """
        cordons = self._cordons.of(address)
        if cordons:
            raise plan.refusal(asked, f'GPU {address} is cordoned: '
                               + cordon.text(cordons))

    def over(self, handle: str) -> None:
        """Forget a handle that is not bound, or not any more."""
        with self._mutex:
            self._units.pop(handle, None)

    def _check_allocation(self, address: model.PciAddress,
                          asked: request.Request) -> None:
        """Refuse a bind without an allocation; if unknown, let it go on.

        Nova and Cyborg bind only what a server has claimed.
        """
        allocated = self._allocated(address, asked)
        if allocated is None:
            return
        with self._mutex:
            counted = collections.Counter(
                unit for handle, unit in self._units.items()
                if handle != asked.handle)
            free = [unit for unit, number in sorted(allocated.items())
                    if number > counted[unit]]
            if free:
                self._units[asked.handle] = free[0]
                return
        raise plan.refusal(
            asked, f'Placement has no allocation for it on GPU {address}')

    def _allocated(self, address: model.PciAddress, asked: request.Request
                   ) -> Mapping[str, int] | None:
        """What servers have of the offer of a bind; None if unknown."""
        gpu = self._host.gpu(address)
        try:
            item = plan.find_offer(gpu, self._host.offers(gpu), asked)
        except exception.BindRefused:
            # The bind will be refused for this.
            return None
        answers: list[Mapping[str, int] | None] = []
        errors: list[Exception] = [TimeoutError(
            f'it has not answered within {_SECONDS:g} s')]

        def ask() -> None:
            try:
                answers.append(self._cloud.allocated(item))
            except Exception as error:
                errors[0] = error

        if self._stuck is None or not self._stuck.is_alive():
            thread = threads.begin(
                ask, name=f'the allocation of handle {asked.handle}')
            if thread is not None:
                thread.join(_SECONDS)
                self._stuck = thread if thread.is_alive() else None
        if answers:
            self._said.over()
            return answers[0]
        if self._said.is_new(type(errors[0]).__name__):
            LOG.warning('Binds go on although it is not known whether their '
                        'servers have allocations, because of Placement: %s',
                        exception.steady(errors[0]))
        return None
