# SPDX-License-Identifier: Apache-2.0

"""Make Cyborg's driver objects from reported values.

This is the only module of the package that imports cyborg. Callers that can
work without Cyborg import it late.
"""

from __future__ import annotations

from collections.abc import Iterable

from cyborg.objects.driver_objects import driver_attach_handle
from cyborg.objects.driver_objects import driver_attribute
from cyborg.objects.driver_objects import driver_controlpath_id
from cyborg.objects.driver_objects import driver_deployable
from cyborg.objects.driver_objects import driver_device

from cyborg_gpu_driver.report.content import names


def driver_devices(reported: Iterable[names.ReportedDevice]
                   ) -> list[driver_device.DriverDevice]:
    """The result of ``discover()``.

    ``device_state`` remains unset: it is for devices that Cyborg cleans.
    """
    return [_device(device) for device in reported]


def _device(device: names.ReportedDevice) -> driver_device.DriverDevice:
    return driver_device.DriverDevice(
        vendor=device.vendor,
        model=device.model,
        type=names.DEVICE_TYPE,
        std_board_info=device.std_board_info,
        vendor_board_info=device.vendor_board_info,
        controlpath_id=driver_controlpath_id.DriverControlPathID(
            cpid_type=names.PCI, cpid_info=device.cpid_info),
        deployable_list=[_deployable(deployable)
                         for deployable in device.deployables],
        stub=device.stub)


def _deployable(deployable: names.ReportedDeployable
                ) -> driver_deployable.DriverDeployable:
    return driver_deployable.DriverDeployable(
        name=deployable.name,
        num_accelerators=deployable.num_accelerators,
        driver_name=names.DRIVER_NAME,
        attribute_list=[
            driver_attribute.DriverAttribute(key=key, value=value)
            for key, value in deployable.attributes],
        attach_handle_list=[
            driver_attach_handle.DriverAttachHandle(
                attach_type=handle.attach_type,
                attach_info=handle.attach_info,
                # Cyborg keeps this in its own database. It uses the value
                # only for a new handle.
                in_use=False)
            for handle in deployable.handles])
