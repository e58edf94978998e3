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

"""Mark unhealthy GPUs in a report to Cyborg. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.report.content import values


def of(devices: Iterable[values.ReportedDevice],
       verdicts: Mapping[model.PciAddress, health.Verdict]
       ) -> tuple[values.ReportedDevice, ...]:
    """The devices that are unhealthy; stubs are left out."""
    return tuple(device for device in devices
                 if _is_unhealthy(device, verdicts))


def marked(devices: Iterable[values.ReportedDevice],
           verdicts: Mapping[model.PciAddress, health.Verdict],
           used: Collection[model.PciAddress]
           ) -> tuple[values.ReportedDevice, ...]:
    """The devices, with the unhealthy ones marked.

    An unhealthy GPU that servers use becomes a stub, so that Cyborg does not
    touch it. An unused one gets a trait that names the reason. ``reserved``
    ensures that nothing more is promised on either.

    :param used: the unhealthy GPUs that servers use.
    """
    return tuple(
        _marked(device, verdicts[device.address], used)
        if _is_unhealthy(device, verdicts) else device for device in devices)


def _is_unhealthy(device: values.ReportedDevice,
                  verdicts: Mapping[model.PciAddress, health.Verdict]
                  ) -> bool:
    verdict = verdicts.get(device.address)
    return not device.stub and verdict is not None and verdict.is_unhealthy


def _marked(device: values.ReportedDevice, verdict: health.Verdict,
            used: Collection[model.PciAddress]) -> values.ReportedDevice:
    if device.address in used:
        return dataclasses.replace(device, stub=True)
    return dataclasses.replace(device, deployables=tuple(
        dataclasses.replace(deployable, traits=tuple(sorted(
            {*deployable.traits, *filter(None, [verdict.trait])})))
        for deployable in device.deployables))
