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

"""Give a GPU in mode auto the role that a bind needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.partition.elastic import role as roles
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.bind import turns
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.planning import request
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import taking
from cyborg_gpu_driver.program.steps import transaction

LOG = logging.getLogger(__name__)


class RoleTaker:
    """Gives idle GPUs the roles that binds ask for.

    :param host: the state of the machine.
    :param transactions: has the machine and its records.
    :param cloud: ensures that no server gets a GPU as a whole.
    """

    def __init__(self, host: live.LiveHost,
                 transactions: transaction.Transactions,
                 cloud: services.Services):
        self._host = host
        self._machine = transactions.machine
        self._records = transactions.records
        self._cloud = cloud

    @contextlib.contextmanager
    def partitioning(self, address: model.PciAddress, asked: request.Request
                     ) -> Iterator[None]:
        """Let no server get a GPU as a whole while a part of it is bound.

        Cyborg does not tell the driver about a server that gets a whole
        GPU. The server's allocation in Placement precedes its bind. So the
        whole GPU is reserved first and its allocations are read after that.
        The caller does not hold the GPU's lock.

        :raises BindRefused: if a server has or may have the whole GPU.
        """
        if not self._may_be_whole(self._host.gpu(address)):
            yield
            return
        with self._cloud.partitioning(address) as reason:
            if reason:
                raise plan.refusal(asked, reason)
            yield

    def take(self, address: model.PciAddress, turn: turns.Turn) -> None:
        """Give a GPU the role that a bind needs; the caller holds its lock.

        :raises BindRefused: if the GPU has another role, or cannot take this
            one now. The next report reverts the steps taken until then.
        :raises BindAbandoned: if Cyborg no longer waits for the bind.
        :raises JournalError: if the GPU's record cannot be read.
        """
        gpu = self._host.gpu(address)
        governing = self._host.policy_for(gpu)
        if governing is None or governing.mode is not policy.Mode.AUTO:
            return
        role = plan.find_offer(gpu, self._host.offers(gpu), turn.asked).mode
        force = self._host.role(gpu)
        if force is role:
            return
        if force is not None:
            raise plan.refusal(turn.asked, _other_role(address, force))
        if self._records.read(address).claims_lost:
            raise plan.refusal(
                turn.asked, f'the record of GPU {address} was damaged, and '
                'what is bound on it is not known yet')
        taken: list[action.Step] = []
        try:
            self._switch(address, role, turn, taken)
        except (exception.BindRefused, exception.BindAbandoned):
            raise
        except exception.GpuDriverError as error:
            step = f'{taken[-1]}: ' if taken else ''
            raise plan.refusal(
                turn.asked, f'GPU {address} cannot take role {role.value}: '
                f'{step}{error}') from error
        finally:
            self._host.refresh_gpu(address)
        if taken:
            LOG.info('GPU %(gpu)s has taken role %(role)s',
                     {'gpu': address, 'role': role.value})

    def _switch(self, address: model.PciAddress, role: policy.Mode,
                turn: turns.Turn, taken: list[action.Step]) -> None:
        def wants(now: model.Gpu) -> readiness.Wants:
            turn.check()
            return self._host.wants(now, role)

        now = self._host.reader.complete_gpu(address)
        if not readiness.steps(now, wants(now)):
            return
        force = roles.in_force(now, ())
        if force is not None and force is not role:
            raise plan.refusal(turn.asked, _other_role(address, force))
        found = blockers.of_preparing(self._machine, now, ())
        if found:
            raise plan.refusal(
                turn.asked, f'GPU {address} cannot take role {role.value}: '
                'in use: ' + ', '.join(found))
        taking.take(self._machine, self._host.reader, now, wants, taken)

    def _may_be_whole(self, gpu: model.Gpu) -> bool:
        governing = self._host.policy_for(gpu)
        return (governing is not None
                and policy.Mode.PASSTHROUGH in governing.roles)


def _other_role(address: model.PciAddress, role: policy.Mode) -> str:
    return (f'GPU {address} is in role {role.value}, which it keeps until '
            'nothing is bound on it')
