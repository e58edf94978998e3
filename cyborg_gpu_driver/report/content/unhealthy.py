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

"""What Cyborg is told of an unhealthy GPU. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.report.content import values


def sick(devices: Iterable[values.ReportedDevice],
         verdicts: Mapping[model.PciAddress, health.Verdict]
         ) -> tuple[values.ReportedDevice, ...]:
    """The devices that are unhealthy; stubs are left out."""
    return tuple(device for device in devices if _is_sick(device, verdicts))


def marked(devices: Iterable[values.ReportedDevice],
           verdicts: Mapping[model.PciAddress, health.Verdict],
           used: Collection[model.PciAddress]
           ) -> tuple[values.ReportedDevice, ...]:
    """The devices, with the unhealthy ones told as such.

    An unhealthy GPU that servers use is a stub: nothing of it is touched.
    Another gets a trait that names the reason. That nothing more is promised
    on either is the business of ``reserved``.

    :param used: the unhealthy GPUs that servers use.
    """
    return tuple(
        _marked(device, verdicts[device.address], used)
        if _is_sick(device, verdicts) else device for device in devices)


def _is_sick(device: values.ReportedDevice,
             verdicts: Mapping[model.PciAddress, health.Verdict]) -> bool:
    verdict = verdicts.get(device.address)
    return not device.stub and verdict is not None and verdict.sick


def _marked(device: values.ReportedDevice, verdict: health.Verdict,
            used: Collection[model.PciAddress]) -> values.ReportedDevice:
    if device.address in used:
        return dataclasses.replace(device, stub=True)
    return dataclasses.replace(device, deployables=tuple(
        dataclasses.replace(deployable, traits=tuple(sorted(
            {*deployable.traits, *filter(None, [verdict.trait])})))
        for deployable in device.deployables))
