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

"""Reading idle GPUs of mode auto once in each of their roles."""

from __future__ import annotations

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy as policy_module
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.partition.elastic import role as roles
from cyborg_gpu_driver.partition.elastic import role_facts
from cyborg_gpu_driver.program.steps import taking
from cyborg_gpu_driver.program.steps import transaction

LOG = logging.getLogger(__name__)


class RoleReader:
    """Determines the role facts (:mod:`.elastic.role_facts`) of GPUs.

    Each process tries once more a role that a GPU could not take.

    :param host_reader: reads GPUs.
    :param transactions: has the machine and its records.
    """

    def __init__(self, host_reader: reader.HostReader,
                 transactions: transaction.Transactions,
                 settings: policies.Settings):
        self._machine = transactions.machine
        self._reader = host_reader
        self._records = transactions.records
        self._settings = settings
        self._tried: set[tuple[model.PciAddress, policy_module.Mode]] = set()

    def missing(self, gpu: model.Gpu) -> tuple[policy_module.Mode, ...]:
        """The roles of a GPU's policy in which it must still be read.

        :raises JournalError: if its record cannot be read.
        """
        governing = self._settings.policy_for(gpu)
        if governing is None or governing.mode is not policy_module.Mode.AUTO:
            return ()
        known = self._records.read(gpu.address).by_role
        return tuple(
            role for role in governing.roles if role in roles.PARTITIONED
            and (not role_facts.holds(known.get(role.value), gpu)
                 or known[role.value].is_doubtful)
            and (gpu.address, role) not in self._tried)

    def take(self, gpu: model.Gpu, taken: list[action.Step]) -> model.Gpu:
        """Let an idle GPU take its roles in turn, and record the facts.

        The caller holds the GPU's lock, and keeps servers from getting it.

        :param gpu: the GPU as it is now.
        :param taken: the steps that are taken are appended to it.
        :returns: the GPU after the last role.
        :raises StepFailed: if it cannot be read.
        :raises JournalError: if its record cannot be written.
        """
        for role in self.missing(gpu):
            gpu, found = self._in_role(gpu, role, taken)
            known = self._records.read(gpu.address).by_role
            self._records.put(gpu.address, by_role={
                **known, role.value: found})
            self._tried.add((gpu.address, role))
            if found.problem:
                LOG.warning('GPU %(gpu)s: role %(role)s is not offered: '
                            '%(problem)s', {
                                'gpu': gpu.address, 'role': role.value,
                                'problem': found.problem})
        return gpu

    def _in_role(self, gpu: model.Gpu, role: policy_module.Mode,
                 taken: list[action.Step]
                 ) -> tuple[model.Gpu, role_facts.RoleFacts]:
        steps: list[action.Step] = []
        try:
            gpu = taking.take(
                self._machine, self._reader, gpu,
                lambda now: self._settings.wants(now, role), steps)
            problem = roles.unsupported(gpu, role)
            if problem:
                return gpu, role_facts.RoleFacts(gpu.device_id, problem)
            if not roles.stands(gpu, role):
                return gpu, role_facts.RoleFacts(
                    gpu.device_id, 'the GPU did not take this role',
                    is_doubtful=True)
            return gpu, role_facts.of(gpu)
        except exception.GpuDriverError as error:
            return (self._reader.complete_gpu(gpu.address),
                    role_facts.RoleFacts(
                        gpu.device_id, f'{steps[-1]}: {error}' if steps
                        else str(error), is_doubtful=True))
        finally:
            taken.extend(steps)
