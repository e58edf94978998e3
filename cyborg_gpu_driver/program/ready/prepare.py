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

"""Making GPUs ready for what their policies say, as soon as they are idle.

Which steps that takes is :mod:`cyborg_gpu_driver.partition.readiness`'s to
say, from the GPU as it is. A step is taken, the GPU read again, and the
question put anew, until nothing is left to do. Nothing in use is touched:
what keeps a GPU from being made ready is named, and it stays as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterable

from oslo_log import log as logging

from cyborg_gpu_driver import locks
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.partition.elastic import role as roles
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.ready import backoff
from cyborg_gpu_driver.program.ready import role_reader
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import passthrough
from cyborg_gpu_driver.program.steps import taking
from cyborg_gpu_driver.program.steps import transaction

LOG = logging.getLogger(__name__)

_HARMLESS = frozenset({action.Action.SCHEDULER})
"""What may be done beside vGPUs, while no virtual machine runs (nvml.h on
nvmlDeviceSetVgpuSchedulerState and nvmlGpuInstanceSetVgpuSchedulerState)."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was done to make one GPU ready, and why not more."""

    gpu: model.PciAddress
    steps: tuple[action.Step, ...] = ()
    """Those that were taken, the one that failed included; of a plan,
    those that are left to do."""
    reason: str = ''
    """Why the GPU is not ready; empty if it is."""
    rolled_back: bool = False
    """Whether a change of a process that died was rolled back first."""

    @property
    def done(self) -> tuple[str, ...]:
        """What was done, for people; empty if the GPU has not changed."""
        return (*((transaction.RECOVERED,) if self.rolled_back else ()),
                *map(str, self.steps))


class Preparer:
    """Makes GPUs ready for their policies.

    :param host_reader: reads GPUs.
    :param transactions: rolls back what a process that died has left.
    :param keeper: knows which GPUs are sick.
    :param cloud: knows which GPUs have servers.
    :param clock: seconds that only grow.
    """

    def __init__(self, host_reader: reader.HostReader,
                 transactions: transaction.Transactions,
                 settings: policies.Settings, keeper: health.HealthKeeper,
                 cloud: services.Services,
                 clock: Callable[[], float] = time.monotonic):
        self._machine = transactions.machine
        self._reader = host_reader
        self._transactions = transactions
        self._settings = settings
        self._health = keeper
        self._cloud = cloud
        self._records = transactions.records
        self._backoff = backoff.Backoff(LOG, clock)
        self._role_reader = role_reader.RoleReader(host_reader, transactions,
                                              settings)

    def plan(self, gpu: model.Gpu) -> Outcome:
        """What is left to do on a GPU, and what is in the way.

        :param gpu: of a snapshot that was taken just now.
        """
        steps = readiness.steps(gpu, self._wants(gpu))
        return Outcome(gpu.address, steps,
                       self._in_the_way(gpu, steps) if steps else '')

    def prepare(self, gpu: model.Gpu) -> Outcome:
        """Make one GPU ready, if it is idle; never raises.

        :param gpu: of a recent snapshot.
        """
        taken: list[action.Step] = []
        return self._backoff.attempt(
            gpu.address, lambda: self._prepare(gpu, taken),
            lambda reason: Outcome(gpu.address, tuple(taken), reason
                                   if not taken else
                                   f'{taken[-1]}: {reason}'))

    def _prepare(self, gpu: model.Gpu, taken: list[action.Step]) -> Outcome:
        rolled_back = (
            self._settings.prepare
            and self._records.read(gpu.address).change is not None
            and self._transactions.recover(gpu, locks.REPORT_SECONDS))
        if rolled_back:
            gpu = self._reader.gpu(gpu.address)
        unread = self._role_reader.missing(gpu)
        if not unread and not readiness.steps(gpu, self._wants(gpu)):
            return Outcome(gpu.address, rolled_back=rolled_back)
        with (self._cloud.partitioning(gpu.address) if unread
              else contextlib.nullcontext('')) as reason:
            if not reason:
                with self._transactions.lock(gpu.address):
                    reason = self._make_ready(gpu.address, bool(unread),
                                              taken)
        return Outcome(gpu.address, tuple(taken), reason, rolled_back)

    def _make_ready(self, address: model.PciAddress, is_unread: bool,
                    taken: list[action.Step]) -> str:
        """Take all steps that a GPU needs; why it cannot be, or ``''``.

        :param is_unread: whether it is to be read in its roles.
        """
        now = self._reader.complete_gpu(address)
        steps = readiness.steps(now, self._wants(now))
        reason = self._in_the_way(now, steps, is_unread)
        if not reason:
            if is_unread:
                now = self._role_reader.take(now, taken)
            # A list of its own: a step that was taken for a role may be
            # taken again to leave it.
            last: list[action.Step] = []
            try:
                taking.take(self._machine, self._reader, now, self._wants,
                            last)
            finally:
                taken.extend(last)
        return reason

    def _wants(self, gpu: model.Gpu) -> readiness.Wants:
        """What the policy needs of a GPU, in the role that it has."""
        claims = self._records.peek(gpu.address).claims
        return self._settings.wants(gpu, roles.in_force(
            gpu, journal.claimed(claims)))

    def _in_the_way(self, gpu: model.Gpu, steps: Iterable[action.Step],
                    is_unread: bool = False) -> str:
        """Why the steps cannot be taken now, for people; or ``''``.

        :param is_unread: whether the GPU is also to take its roles in turn.
        """
        if gpu.problems:
            return '; '.join(gpu.problems)
        actions = {step.action for step in steps}
        sick = self._health.sick(gpu.address)
        if action.Action.BIND_VFIO in actions and sick:
            return (f'it is unhealthy ({"; ".join(sick.reasons)}); it stays '
                    'with its driver, which tells when it is healthy')
        try:
            if not is_unread and readiness.HARMLESS.issuperset(actions):
                found = passthrough.blockers_of(self._machine, gpu, actions)
            elif not is_unread and _HARMLESS.issuperset(actions):
                found = blockers.of_running(self._machine, gpu)
            else:
                record = self._records.read(gpu.address)
                found = blockers.of_preparing(self._machine, gpu,
                                              record.claims)
                if not found and record.change:
                    found = ('a change of its layout did not come to its '
                             'end',)
                if not found:
                    found = tuple(filter(None, [
                        self._cloud.claimed(gpu.address)]))
        except Exception as error:
            return f'it is not known whether it is idle: {error}'
        return 'in use: ' + ', '.join(found) if found else ''
