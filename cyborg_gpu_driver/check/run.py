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


"""The checks, in the order in which they are shown.

A check is a function that takes :class:`cyborg_gpu_driver.check.facts.Facts`
and yields findings. To add a check, write the function and register it here
with the facts that it requires.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from cyborg_gpu_driver.check import facts as facts_module
from cyborg_gpu_driver.check.rules import cyborg
from cyborg_gpu_driver.check.rules import gpus
from cyborg_gpu_driver.check.rules import nova
from cyborg_gpu_driver.check.rules import result


class Needs(enum.Enum):
    """Facts that a check may require and that may be missing."""

    MACHINE = 'machine'
    CYBORG = 'cyborg'
    NOVA = 'nova'


@dataclasses.dataclass(frozen=True)
class Check:
    """A check with the facts that it requires."""

    find: Callable[[facts_module.Facts], Iterable[result.Finding]]
    needs: tuple[Needs, ...] = ()


CHECKS: dict[str, Check] = {
    'GPUs': Check(gpus.offered),
    'kernel driver': Check(gpus.driver),
    'kernel modules': Check(gpus.modules, (Needs.MACHINE,)),
    'NVML': Check(gpus.nvml),
    'NVSwitches': Check(gpus.fabric_manager),
    'IOMMU': Check(gpus.iommu),
    'MIG mode and SR-IOV': Check(gpus.ready),
    'vGPU framework': Check(gpus.way),
    'kernel': Check(gpus.kernel, (Needs.MACHINE,)),
    'sriov-manage': Check(gpus.sriov_manage, (Needs.MACHINE,)),
    'mdevctl': Check(gpus.mdevctl, (Needs.MACHINE,)),
    'Cyborg release': Check(cyborg.release, (Needs.MACHINE,)),
    'Cyborg drivers': Check(cyborg.drivers, (Needs.CYBORG,)),
    'agent privileges': Check(cyborg.privileges,
                              (Needs.MACHINE, Needs.CYBORG)),
    'agent access': Check(cyborg.access, (Needs.MACHINE,)),
    'host name': Check(cyborg.host_name, (Needs.MACHINE, Needs.CYBORG)),
    'Placement': Check(cyborg.placement, (Needs.MACHINE, Needs.CYBORG)),
    'allocation candidates': Check(cyborg.candidates),
    'Placement claims': Check(cyborg.claims),
    'earlier driver': Check(cyborg.earlier,
                            (Needs.MACHINE, Needs.CYBORG)),
    'service token, Cyborg': Check(cyborg.service_roles,
                                   (Needs.CYBORG,)),
    'Nova release': Check(nova.release, (Needs.MACHINE,)),
    'service token, Nova': Check(nova.service_token, (Needs.NOVA,)),
    'guests at host boot': Check(nova.guests,
                                 (Needs.MACHINE, Needs.NOVA)),
    'nova-compute command': Check(gpus.start_command, (Needs.MACHINE,)),
    'Nova PCI devices': Check(nova.pci_devices, (Needs.NOVA,)),
    'Nova quotas': Check(nova.quotas, (Needs.MACHINE, Needs.NOVA)),
    'Nova mdev types': Check(nova.mdev_types, (Needs.NOVA,)),
    'live migration': Check(nova.between_hosts),
}


def run(facts: facts_module.Facts
        ) -> Iterator[tuple[str, result.Finding]]:
    """Yield each finding with its check's name, at least one per check."""
    for name, check in CHECKS.items():
        findings = _missing(facts, check) or list(check.find(facts))
        for finding in findings or [
                result.success(result.HOST, 'no problem found')]:
            yield name, finding


def _missing(facts, check):
    """Return the findings in place of the check; empty if it can be made."""
    if Needs.MACHINE in check.needs and facts.machine is None:
        return [result.skipped(result.HOST, 'the machine is simulated')]
    if Needs.CYBORG in check.needs and facts.cyborg is None:
        return [result.skipped(
            result.HOST, facts.cyborg_problem,
            'Give the path of cyborg.conf with --config-file before the '
            'command')]
    if Needs.NOVA in check.needs and facts.nova is None:
        return [result.skipped(
            result.HOST, facts.nova_problem,
            'Give the path of nova.conf with --nova-config-file, as a user '
            'who can read it')]
    return []
