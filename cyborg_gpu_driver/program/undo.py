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

"""Back to how a GPU was before a change that failed or was interrupted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.program import gpu_state
from cyborg_gpu_driver.program import mig_mode
from cyborg_gpu_driver.program import steps
from cyborg_gpu_driver.program import way_back
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

UNDONE = 'the GPU is as it was before'
STUCK = ('the GPU could not be brought back to what it was; run "cyborg-gpu '
         'layout restore" or apply a layout again')

_ROUNDS = 3
"""How often the way back is tried from what is then there."""


class Undoer:
    """Brings GPUs back to what their records say they were.

    Each round reads what is there and goes on from that, whatever an
    earlier one came to. The caller holds the GPU's lock.

    :param in_use: instances of a GPU in use, by placement; they stay.
    """

    def __init__(self, machine: platform.Platform,
                 reader: gpu_state.StateReader,
                 records: store.Store,
                 in_use: Callable[[model.Gpu], dict[model.Placement, str]]):
        self._machine = machine
        self._reader = reader
        self._store = records
        self._in_use = in_use

    def undo(self, gpu: model.Gpu, record: gpu_record.LayoutChange
             ) -> str | None:
        """Undo a change; never raises.

        :returns: None if the GPU is as it was and its record is gone, else
            what is in the way, which the record then says too.
        """
        problem = None
        for _ in range(_ROUNDS):
            try:
                problem = self._round(gpu, record)
                if problem is None:
                    self._store.put(gpu.address, change=None)
                    return None
            except exception.GpuDriverError as error:
                problem = str(error)
        LOG.error('GPU %(gpu)s: cannot be brought back to what it was: '
                  '%(problem)s', {'gpu': gpu.address, 'problem': problem})
        try:
            self._store.put(gpu.address, change=dataclasses.replace(
                record, problem=problem))
        except exception.JournalError as error:
            LOG.error('GPU %s: %s', gpu.address, error)
        return problem

    def _round(self, gpu, record):
        """Go as far back as it goes; what is left, None if nothing."""
        before = record.before
        now = self._reader.read(gpu)
        if before.enabled and not now.mig.enabled:
            mig_mode.put_back(self._machine, gpu, True, before.pending)
            now = self._reader.read(gpu)
        if now.mig.enabled:
            blocked = self._take(now, way_back.steps(
                now, before, record.touched))
            if blocked:
                return '; '.join(blocked)
        mig_mode.put_back(self._machine, gpu, before.enabled,
                          before.pending)
        left = way_back.differences(self._reader.read(gpu), before,
                                    record.touched)
        return '; '.join(left) or None

    def _take(self, now, todo):
        """Take the steps that leave alone what is in use."""
        if not todo:
            return []
        used = self._in_use(now)
        runner = steps.Runner(self._machine, now)
        blocked = []
        for step in todo:
            reasons = [f'{place} is in use: {reason}'
                       for place, reason in used.items()
                       if place.mask & step.placement.mask
                       and not _leaves_alone(step, place)]
            if reasons:
                blocked.append(f'{step}: {", ".join(reasons)}')
                continue
            try:
                runner.take(step)
            except exception.GpuDriverError as error:
                # What comes after it may need it.
                blocked.append(f'{step}: {error}')
                break
        return blocked


def _leaves_alone(step, place):
    """Whether a step does no harm to what runs at its own placement."""
    return (step.action is change.Action.CREATE_COMPUTE
            and step.placement == place)
