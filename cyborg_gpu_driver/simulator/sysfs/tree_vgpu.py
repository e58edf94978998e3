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

"""The files that create vGPUs: mdev types and the vendor's VFIO files."""

from __future__ import annotations

import errno
import re

from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module
from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.driver import vgpu as rules
from cyborg_gpu_driver.simulator.sysfs import nodes

_UUID = re.compile('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', re.I)


class VgpuFiles:
    """The files for vGPUs in the directories of one GPU's functions."""

    def __init__(self, gpu: gpu_module.Gpu):
        self.gpu = gpu
        self._kinds = {_type_id(kind): kind for kind in gpu.model.vgpu_types}

    def entries(self, address: str) -> dict[str, nodes.Node]:
        """Return the entries for the directory of a PF or a VF."""
        gpu = self.gpu
        if gpu.vgpu_on_pf != (address == gpu.address):
            return {}
        if gpu.spec.framework == spec.MDEV:
            return {'mdev_supported_types': nodes.Listing(
                self._kinds.keys,
                lambda name: self._type(address, self._kinds[name]),
                present=lambda: gpu.framework == spec.MDEV)}
        if gpu.spec.framework == spec.VENDOR_VFIO:
            return {
                'nvidia': nodes.Directory(
                    self._vendor(address),
                    present=lambda: gpu.framework == spec.VENDOR_VFIO),
                'vfio-dev': nodes.Directory(
                    {self._vfio_name(address): nodes.Directory({})},
                    present=lambda: bool(gpu.vgpus_on(address)))}
        return {}

    def _vfio_name(self, address):
        """A name that no other function of the machine has."""
        functions = [vf for gpu in self.gpu.machine.gpus
                     for vf in gpu.vf_addresses]
        return f'vfio{functions.index(address)}'

    def mdevs(self, address: str) -> list[str]:
        """Return the UUIDs of the mdevs on a function."""
        return [vgpu.uuid for vgpu in self.gpu.vgpus_on(address)
                if vgpu.uuid]

    def mdev(self, address: str, uuid: str) -> nodes.Node:
        """Return the directory of an mdev."""
        kind = self.gpu.model.vgpu_type(self._vgpu(uuid).type_id)
        place = f'devices/pci0000:00/{address}'
        return nodes.Directory({
            'mdev_type': nodes.Link(
                f'{place}/mdev_supported_types/{_type_id(kind)}'),
            'iommu_group': nodes.Link(
                f'kernel/iommu_groups/{rules.iommu_group(self._vgpu(uuid))}'),
            'remove': nodes.File(
                write=lambda text: self._remove(uuid, text)),
            'nvidia': nodes.Directory({
                'vgpu_params': nodes.File(
                    lambda: self._vgpu(uuid).params,
                    lambda text: rules.set_params(
                        self.gpu, self._vgpu(uuid), text))}),
        })

    def _vgpu(self, uuid):
        return next(vgpu for vgpu in self.gpu.state.vgpus
                    if vgpu.uuid == uuid)

    def _type(self, address, kind):
        return nodes.Directory({
            'name': nodes.File(f'NVIDIA {kind.name}'),
            'description': nodes.File(_description(kind)),
            'device_api': nodes.File('vfio-pci'),
            'available_instances': nodes.File(
                lambda: str(rules.available(self.gpu, kind, address))),
            'create': nodes.File(
                write=lambda text: self._create(address, kind, text)),
            'devices': nodes.Listing(
                lambda: [vgpu.uuid for vgpu in self.gpu.vgpus_on(address)
                         if vgpu.type_id == kind.type_id and vgpu.uuid],
                lambda uuid: nodes.Link(
                    f'devices/pci0000:00/{address}/{uuid}')),
        })

    def _create(self, address, kind, text):
        # The kernel accepts only a UUID with or without a newline.
        uuid = text[:-1] if text.endswith('\n') else text
        if _UUID.fullmatch(uuid) is None:
            raise OSError(errno.EINVAL, '')
        uuid = uuid.lower()
        if any(vgpu.uuid == uuid for gpu in self.gpu.machine.gpus
               for vgpu in gpu.state.vgpus):
            raise OSError(errno.EEXIST, '')
        try:
            rules.create(self.gpu, kind, address, uuid)
        except refusal.Unavailable:
            raise OSError(errno.ENOSPC, '') from None

    def _remove(self, uuid, text):
        if text.strip() not in ('0', '1'):
            raise OSError(errno.EINVAL, '')
        if text.strip() == '0':
            return
        rules.remove_mdev(self.gpu, self._vgpu(uuid))

    def _forget(self, vgpu):
        if vgpu.holders:
            raise OSError(errno.EBUSY, '')
        self.gpu.state.vgpus.remove(vgpu)

    def _vendor(self, address):
        return {
            'creatable_vgpu_types': nodes.File(
                lambda: self._creatable(address)),
            'current_vgpu_type': nodes.File(
                lambda: str(self._current(address)),
                lambda text: self._set_current(address, text)),
            'gpu_instance_id': nodes.File(
                lambda: self._output(address, 'instance')),
            'placement_id': nodes.File(
                lambda: self._output(address, 'placement')),
            'vgpu_params': nodes.File(
                lambda: self._params(address),
                lambda text: self._set_params(address, text)),
            'warm_update': nodes.File('0', lambda text: None),
        }

    def _creatable(self, address):
        lines = ['ID    : vGPU Name']
        lines += [f'{kind.type_id:<6}: NVIDIA {kind.name}'
                  for kind in self.gpu.model.vgpu_types
                  if rules.available(self.gpu, kind, address)]
        return '\n'.join(lines)

    def _current(self, address):
        vgpus = self.gpu.vgpus_on(address)
        return vgpus[0].type_id if vgpus else 0

    def _set_current(self, address, text):
        value = text.strip()
        if re.fullmatch('[0-9]+', value) is None:
            raise OSError(errno.EINVAL, '')
        vgpus = self.gpu.vgpus_on(address)
        if int(value) == 0:
            for vgpu in vgpus:
                self._forget(vgpu)
            return
        kind = self.gpu.model.vgpu_type(int(value))
        if kind is None:
            raise OSError(errno.EINVAL, '')
        if vgpus:
            raise OSError(errno.EBUSY, '')
        try:
            rules.create(self.gpu, kind, address, None)
        except refusal.Unavailable:
            # The driver logs "Failed to add vgpu create request".
            raise OSError(errno.EIO, '') from None

    def _params(self, address):
        vgpus = self.gpu.vgpus_on(address)
        return vgpus[0].params if vgpus else ''

    def _set_params(self, address, text):
        vgpus = self.gpu.vgpus_on(address)
        if not vgpus:
            raise OSError(errno.ENXIO, '')
        rules.set_params(self.gpu, vgpus[0], text)

    def _output(self, address, name):
        """A value that the driver shows for a vGPU.

        :raises OSError: ENXIO while there is no vGPU or no such value.
        """
        vgpus = self.gpu.vgpus_on(address)
        if not vgpus or getattr(vgpus[0], name) is None:
            raise OSError(errno.ENXIO, '')
        return str(getattr(vgpus[0], name))


def _type_id(kind):
    return f'nvidia-{kind.type_id}'


def _description(kind):
    heads = 1 if kind.vgpu_class == 'Compute' else 4
    return (f'num_heads={heads}, frl_config=60, '
            f'framebuffer={kind.framebuffer_mib}M, '
            f'max_resolution=4096x2160, '
            f'max_instance={kind.max_instances}')
