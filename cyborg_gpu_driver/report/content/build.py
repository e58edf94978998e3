# SPDX-License-Identifier: Apache-2.0

"""Make a report from a snapshot and its offers. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.report.content import names

NVIDIA = '10de'
UNPATCHED = ('start nova-compute as cyborg-gpu-nova-compute: it runs without '
             'the patches that attach such GPUs to servers')

_CONTROLLERS = {'0300': 'VGA compatible controller', '0302': '3D controller'}
"""Names of PCI classes, as in lspci and so in Cyborg's own driver."""


def device(gpu: model.Gpu, gpu_offers: Iterable[offers.Offer],
           hostname: str, cordons: cordon.Cordons = ()
           ) -> names.ReportedDevice:
    """One GPU's device; without deployables if nothing is reportable.

    :param cordons: the GPU's cordons. Cyborg's API shows them.
    :raises InvalidValue: if ``hostname`` is empty.
    """
    deployables: dict[str, names.ReportedDeployable] = {}
    # Sorted, so that the choice between two offers with the same provider
    # name is always the same.
    wanted = sorted(filter(reportable, gpu_offers), key=lambda item: (
        item.profile, item.vgpu_type_id or ''))
    for offer in wanted:
        deployable = _deployable(gpu, offer, hostname)
        deployables.setdefault(deployable.name, deployable)
    return names.ReportedDevice(
        address=gpu.address,
        vendor=gpu.vendor_id,
        model=_model(gpu.model, gpu.device_id),
        std_board_info=_std_board_info(gpu),
        vendor_board_info=_vendor_board_info(gpu, cordons),
        cpid_info=cpid_info(gpu.address),
        deployables=tuple(deployables.values()),
        busy='; '.join(dict.fromkeys(
            offer.busy for offer in wanted if offer.busy)),
        busy_names=frozenset(names.provider_name(hostname, offer)
                             for offer in wanted if offer.busy))


def servable(gpu_offers: Iterable[offers.Offer], mdev_problem: str,
             nova_unpatched: bool) -> tuple[offers.Offer, ...]:
    """The offers, with ``problem`` set if Nova cannot attach them.

    :param mdev_problem: why no handle of type MDEV works; empty if they work.
    :param nova_unpatched: whether nova-compute is known to run without our
        patches.
    """
    def problem(offer: offers.Offer) -> str:
        if offer.problem or offer.mode is policy.Mode.PASSTHROUGH:
            return offer.problem
        if not mdev_problem and nova_unpatched and needs_patches(offer):
            return UNPATCHED
        return mdev_problem

    return tuple(dataclasses.replace(offer, problem=problem(offer))
                 for offer in gpu_offers)


def needs_patches(offer: offers.Offer) -> bool:
    """Whether only a nova-compute with our patches attaches an offer."""
    return (offer.mode is policy.Mode.NVLINK
            or offer.framework is model.Framework.VENDOR_VFIO)


def reportable(offer: offers.Offer) -> bool:
    """Whether an offer can be reported to Cyborg.

    The offer must have no problem and a total above 0 (Placement refuses 0,
    and Cyborg then reports nothing). Unless it is a whole GPU, it must have
    an mdev type, and functions for it.
    """
    if offer.problem or offer.total < 1:
        return False
    return (offer.mode is policy.Mode.PASSTHROUGH
            or bool(offer.vgpu_type_id and offer.parents))


def stub_device(address: model.PciAddress) -> names.ReportedDevice:
    """A device that tells Cyborg not to touch the GPU at ``address``.

    It needs only the address, so that it can stand for a GPU that no longer
    exists. Cyborg reads only its stub flag and ``cpid_info``.
    """
    return names.ReportedDevice(
        address=address, vendor=NVIDIA, model=_model(None, None),
        std_board_info=_json({}), vendor_board_info=_json({}),
        cpid_info=cpid_info(address), stub=True)


def cpid_info(address: model.PciAddress) -> str:
    """The JSON text by which Cyborg recognizes a device in each report."""
    return _json(_pci(address))


def _deployable(gpu: model.Gpu, offer: offers.Offer, hostname: str
                ) -> names.ReportedDeployable:
    return names.ReportedDeployable(
        name=names.provider_name(hostname, offer),
        offer=offer.lasting,
        resource_class=names.resource_class(offer),
        traits=names.traits(gpu, offer),
        handles=_handles(gpu, offer))


def _handles(gpu: model.Gpu, offer: offers.Offer
             ) -> tuple[names.ReportedHandle, ...]:
    if offer.function:
        # No server gets them any more: only their number matters. The handle
        # of a whole GPU remains as it was.
        marks = [{}, *({'vgpu_mark': str(number)}
                       for number in range(1, offer.total))]
        return tuple(names.ReportedHandle(
            names.PCI, _json(_pci(offer.function) | mark), offer.function)
            for mark in marks)
    if offer.mode is policy.Mode.PASSTHROUGH:
        return (names.ReportedHandle(names.PCI, cpid_info(gpu.address),
                                     gpu.address),)
    parents = sorted(offer.parents)
    # If a report lacks some handles of a deployable, Cyborg removes the
    # newest ones instead (its filter ignores attach_info), and never settles.
    # Each handle has a digest of the whole set. So a change of the set
    # changes all handles, and Cyborg carries that out.
    mark = names.digest(' '.join(
        [str(offer.vgpu_type_id), str(offer.total), *map(str, parents),
         *map(str, offer.members[1:])]), 8)
    handles = []
    members = ({'addresses': nvlink.to_text(offer.members)}
               if offer.members else {})
    for number in range(offer.total):
        parent = parents[number % len(parents)]
        handles.append(names.ReportedHandle(
            attach_type=names.MDEV,
            attach_info=_json(_pci(parent) | members | {
                'asked_type': offer.vgpu_type_id,
                'vgpu_mark': f'{names.label(offer)}_{number}_{mark}'}),
            address=parent))
    return tuple(handles)


def _pci(address: model.PciAddress) -> dict[str, str]:
    return {'domain': f'{address.domain:04x}', 'bus': f'{address.bus:02x}',
            'device': f'{address.device:02x}',
            'function': f'{address.function:x}'}


def _model(name: str | None, device_id: str | None) -> str:
    # Cyborg's column cannot be null.
    return _text(name or ' '.join(
        filter(None, (names.VENDOR, 'GPU', device_id))))


def _std_board_info(gpu: model.Gpu) -> str:
    # The address identifies the GPU in Cyborg's API.
    return _json({
        'address': str(gpu.address),
        'controller': _CONTROLLERS.get(gpu.class_code, gpu.class_code),
        'product_id': gpu.device_id})


def _vendor_board_info(gpu: model.Gpu, cordons: cordon.Cordons) -> str:
    known = {
        'architecture': gpu.architecture,
        'memory_mib': gpu.memory_mib,
        'numa_node': gpu.numa_node,
        'serial': gpu.serial,
        'subsystem_device_id': gpu.subsystem_device_id,
        'subsystem_vendor_id': gpu.subsystem_vendor_id,
        'uuid': gpu.uuid,
    }
    return _json({key: _text(str(value)) for key, value in known.items()
                  if value is not None}
                 | ({'cordons': cordon.to_json(cordons)} if cordons else {}))


def _text(text: str) -> str:
    return text[:names.INFO_MAX]


def _json(value: Mapping[str, str | None]) -> str:
    return json.dumps(value, sort_keys=True)


# Mark unhealthy GPUs in a report to Cyborg. Pure.

def mark_unhealthy(devices: Iterable[names.ReportedDevice],
                   verdicts: Mapping[model.PciAddress, health.Verdict],
                   is_used: Callable[[names.ReportedDevice], bool]
                   ) -> tuple[names.ReportedDevice, ...]:
    """The devices, with the unhealthy ones marked.

    An unhealthy GPU that servers use becomes a stub, so that Cyborg does not
    touch it. An unused one gets a trait that names the reason. ``reserved``
    ensures that nothing more is promised on either.

    :param is_used: asked of unhealthy devices only.
    """
    return tuple(_marked(device, verdicts.get(device.address), is_used)
                 for device in devices)


def _marked(device: names.ReportedDevice, verdict: health.Verdict | None,
            is_used: Callable[[names.ReportedDevice], bool]
            ) -> names.ReportedDevice:
    if device.stub or verdict is None or not verdict.is_unhealthy:
        return device
    if is_used(device):
        return dataclasses.replace(device, stub=True)
    return dataclasses.replace(device, deployables=tuple(
        dataclasses.replace(deployable, traits=tuple(sorted(
            {*deployable.traits, *filter(None, [verdict.trait])})))
        for deployable in device.deployables))
