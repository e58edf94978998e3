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

"""Keeps NVSwitch partitions active as long as their vGPUs exist.

After a restart, the fabric manager has forgotten the active partitions, or
asks for their list ("Resiliency" in its user guide).
"""

from __future__ import annotations

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.fabric import config
from cyborg_gpu_driver.host.snapshot import fabric
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.privileged import fabric as privileged_fabric

LOG = logging.getLogger(__name__)


class FabricKeeper:
    """Compares active partitions with the claims of one machine.

    :param machine: the machine to read.
    :param host: the last snapshot of the machine.
    :param records: the journal.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: journal.Journal):
        self._machine = machine
        self._host = host
        self._journal = records
        self._failure = log_once.LogOnce()

    def look(self) -> None:
        """Activate missing partitions, and deactivate unclaimed ones.

        Called for each report. Never raises. Does nothing if the fabric
        manager of this machine does not run for vGPUs.
        """
        try:
            if (config.read(self._machine.fabric_config).mode
                    is not fabric.Mode.VGPU):
                return
        except exception.FabricError:
            return
        try:
            for words in self._restore():
                LOG.warning('NVSwitches: %s', words)
        except exception.GpuDriverError as error:
            if self._failure.is_new(str(error)):
                LOG.error('The partitions of the NVSwitches could not be '
                          'restored: %s', error)
        else:
            self._failure.over()

    def _restore(self) -> list[str]:
        claims = [claim for claim in self._journal.entries()
                  if claim.fabric_partition is not None]
        claimed = {claim.gpu for claim in claims}
        return privileged_fabric.restore(
            [(claim.fabric_partition, str(claim.function))
             for claim in claims if claim.phase is journal.Phase.BOUND],
            [str(gpu.address) for gpu in self._host.host().gpus
             if gpu.visible_to_nvml and not gpu.vgpus
             and gpu.address not in claimed])
