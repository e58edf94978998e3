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

"""From the YAML files of models and hosts to the values of ``spec``."""

from __future__ import annotations

import hashlib
import os
import pathlib
import uuid

import pynvml
import yaml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import entry as entry_module
from cyborg_gpu_driver.simulator import spec

HERE = pathlib.Path(__file__).parent
# The same loader in C where PyYAML was built with it.
_LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
_SUFFIXES = ('.yaml', '.yml')
_ARCHITECTURES = {
    'volta': pynvml.NVML_DEVICE_ARCH_VOLTA,
    'turing': pynvml.NVML_DEVICE_ARCH_TURING,
    'ampere': pynvml.NVML_DEVICE_ARCH_AMPERE,
    'ada': pynvml.NVML_DEVICE_ARCH_ADA,
    'hopper': pynvml.NVML_DEVICE_ARCH_HOPPER,
    'blackwell': pynvml.NVML_DEVICE_ARCH_BLACKWELL,
}
_SPACE = uuid.UUID('7c7d2f0e-52f0-4a3c-9d5e-6f1f0a8f7a11')
"""Names everything that is made up here, so that it never changes."""


def names() -> list[str]:
    """Names of the hosts that are installed with the library."""
    return sorted(path.stem for path in (HERE / 'hosts').glob('*.yaml'))


def model_names() -> list[str]:
    """Names of the models that are installed with the library."""
    return sorted(path.stem for path in (HERE / 'models').glob('*.yaml'))


def made_up_uuid(*parts: object) -> str:
    """A UUID that is always the same for the same parts."""
    return str(uuid.uuid5(_SPACE, '/'.join(str(part) for part in parts)))


def load(name_or_path: str) -> spec.Host:
    """Read a host.

    :param name_or_path: one of :func:`names`, or the path of a YAML file.
    :raises SimulationError: if there is none, or it is not right.
    """
    path = _find(name_or_path)
    digest = hashlib.sha256()
    root = entry_module.Entry(str(path), '', _read(path, digest))
    host = _Reader(path, digest).host(root)
    return host


def load_model(name: str) -> spec.Model:
    """Read one model that is installed with the library.

    :raises SimulationError: if there is none, or it is not right.
    """
    path = HERE / 'models' / f'{name}.yaml'
    if name not in model_names():
        raise exception.SimulationError(
            name=name, reason='no such model; there are '
                              + ', '.join(model_names()))
    return _model(name, path, hashlib.sha256())


def _find(name_or_path):
    if name_or_path in names():
        return HERE / 'hosts' / f'{name_or_path}.yaml'
    path = pathlib.Path(name_or_path)
    if path.suffix in _SUFFIXES or os.sep in name_or_path:
        return path
    raise exception.SimulationError(
        name=name_or_path,
        reason='no such host; give the path of a .yaml file or one of '
               + ', '.join(names()))


def _read(path, digest):
    try:
        data = path.read_bytes()
    except OSError as error:
        raise exception.SimulationError(
            name=str(path), reason=error.strerror) from error
    digest.update(data)
    try:
        return yaml.load(data, _LOADER)
    except yaml.YAMLError as error:
        raise exception.SimulationError(
            name=str(path), reason=f'not YAML: {error}') from error


class _Reader:
    """Reads one host file and the models that it names."""

    def __init__(self, path, digest):
        self._path = path
        self._digest = digest
        self._models = {}
        self._taken = set()

    def host(self, root):
        name = self._path.stem
        driver_version = root.text('driver_version')
        cuda_version = root.integer('cuda_version', 12040)
        wsl = root.boolean('wsl', False)
        virtual = root.boolean('virtual', False)
        switches = self._functions(root, 'nvswitches')
        functions = switches + self._functions(root, 'functions')
        addresses = tuple(function.address for function in switches)
        gpus = [self._gpu(item, name, wsl, addresses)
                for item in root.entries('gpus')]
        root.done()
        gpus.sort(key=lambda gpu: gpu['address'])
        gpus = [spec.Gpu(minor=minor, **gpu)
                for minor, gpu in enumerate(gpus)]
        self._check_peers(gpus, addresses)
        return spec.Host(
            name=name, digest=self._digest.hexdigest(),
            driver_version=driver_version,
            nvml_version=f'{cuda_version // 1000}.{driver_version}',
            cuda_version=cuda_version, wsl=wsl, gpus=tuple(gpus),
            functions=functions, virtual=virtual)

    def _gpu(self, item, host_name, wsl, switches):
        model = self._model(item)
        address = self._address(item)
        made_up = made_up_uuid(host_name, address)
        vfs = item.take(
            'vfs', lambda value: value == 'all' or (
                entry_module.is_integer(value)
                and 0 <= value <= model.totalvfs),
            f"'all' or at most {model.totalvfs}", 0)
        mig = item.boolean('mig', False)
        if mig and model.mig is None:
            item.refuse('mig', mig, f'false: {model.name} has no MIG')
        if vfs and wsl:
            item.refuse('vfs', vfs, '0 under WSL')
        gpu = {
            'address': address,
            'model': model,
            'uuid': item.text('uuid', f'GPU-{made_up}'),
            'serial': item.text(
                'serial', '1' + str(int(made_up[:8], 16)).zfill(12)[-12:]),
            'numa_node': item.take(
                'numa_node', lambda value: entry_module.is_integer(value)
                and value >= -1, 'an integer of at least -1', -1),
            'iommu_group': item.integer('iommu_group', None),
            'driver': item.take(
                'driver', lambda value: value in (None, 'nvidia',
                                                  'vfio-pci', 'nouveau'),
                'nvidia, vfio-pci, nouveau or null', 'nvidia'),
            'mig': mig,
            'vfs': model.totalvfs if vfs == 'all' else vfs,
            'framework': item.choice('framework', spec.FRAMEWORKS,
                                     spec.NO_FRAMEWORK),
            'nvlink_peers': self._peers(item, model, switches),
        }
        item.done()
        return gpu

    def _model(self, item):
        name = item.text('model')
        if name not in self._models:
            path = HERE / 'models' / f'{name}.yaml'
            if pathlib.Path(name).suffix in _SUFFIXES:
                path = self._path.parent / name
            elif name not in model_names():
                item.refuse('model', name,
                            'a .yaml file or one of '
                            + ', '.join(model_names()))
            self._models[name] = _model(path.stem, path, self._digest)
        return self._models[name]

    def _address(self, item):
        address = item.address('address')
        if address in self._taken:
            item.refuse('address', address, 'an address used only once')
        self._taken.add(address)
        return address

    def _peers(self, item, model, switches):
        value = item.take(
            'nvlink', lambda value: value == 'switches' or (
                isinstance(value, list)
                and len(value) <= model.nvlinks
                and all(entry_module.is_address(peer) for peer in value)),
            f"'switches' or at most {model.nvlinks} addresses, one a link",
            [])
        if value != 'switches':
            return tuple(value)
        if not switches:
            item.refuse('nvlink', value, 'nvswitches in the file')
        # Links are spread evenly over the switches.
        return tuple(switches[link % len(switches)]
                     for link in range(model.nvlinks))

    def _functions(self, root, key):
        functions = []
        for item in root.entries(key):
            functions.append(spec.Function(
                address=self._address(item),
                vendor=item.digits('vendor', 4),
                device=item.digits('device', 4),
                class_code=item.digits('class', 6),
                driver=item.text('driver', None),
                numa_node=item.take(
                    'numa_node', entry_module.is_integer,
                    'an integer', -1),
                iommu_group=item.integer('iommu_group', None)))
            item.done()
        return tuple(functions)

    def _check_peers(self, gpus, switches):
        known = {gpu.address for gpu in gpus} | set(switches)
        for gpu in gpus:
            for peer in gpu.nvlink_peers:
                if peer not in known:
                    raise exception.SimulationError(
                        name=str(self._path),
                        reason=f'{gpu.address}: NVLink peer {peer} is '
                               f'neither a GPU nor an NVSwitch of this '
                               f'file')


def _model(name, path, digest):
    root = entry_module.Entry(str(path), '', _read(path, digest))
    sriov = root.entry('sriov')
    mig = _mig(root.entry('mig'))
    model = spec.Model(
        name=name,
        product=root.text('product'),
        brand=root.integer('brand', pynvml.NVML_BRAND_NVIDIA),
        architecture=_ARCHITECTURES[
            root.choice('architecture', _ARCHITECTURES)],
        compute_capability=root.take(
            'compute_capability', lambda value: isinstance(value, list)
            and len(value) == 2, 'a list of two integers'),
        vendor='10de',
        device=root.digits('device', 4),
        subsystem_vendor=root.digits('subsystem_vendor', 4, '10de'),
        subsystem_device=root.digits('subsystem_device', 4),
        class_code=root.digits('class', 6, '030200'),
        memory_mib=root.integer('memory_mib', minimum=1),
        bar1_mib=root.integer('bar1_mib'),
        power_limit_watts=root.integer('power_limit_watts'),
        multiprocessors=root.integer('multiprocessors'),
        row_remapping=root.boolean('row_remapping'),
        totalvfs=sriov.integer('totalvfs') if sriov else 0,
        vf_offset=sriov.integer('offset', 4, 1) if sriov else 4,
        vf_stride=sriov.integer('stride', 1, 1) if sriov else 1,
        nvlinks=root.integer('nvlinks', 0),
        mig=mig,
        placement_region=root.integer('placement_region', None, 1),
        vgpu_types=tuple(_vgpu_type(item, mig)
                         for item in root.entries('vgpu_types')))
    if sriov:
        sriov.done()
    root.done()
    return model


def _mig(item):
    if item is None:
        return None
    units = item.integer('units', minimum=1)
    needs_reset = item.boolean('needs_reset')
    profiles = tuple(_instance_profile(profile, units)
                     for profile in item.entries('profiles'))
    for number, profile in enumerate(profiles):
        for other in profiles[:number]:
            if (profile.enum == other.enum
                    or profile.profile_id == other.profile_id):
                item.refuse('profiles', profile.name,
                            f"an enum and an id other than {other.name}'s")
    compute = item.entry('compute_profiles')
    by_slices = {
        slices: tuple(_compute_profile(profile) for profile
                      in compute.entries(slices))
        for slices in sorted({profile.slices for profile in profiles})}
    compute.done()
    item.done()
    return spec.Mig(units=units, needs_reset=needs_reset,
                    profiles=profiles, compute_profiles=by_slices)


def _instance_profile(item, units):
    size = item.integer('size', minimum=1)
    starts = item.integers('starts')
    if not starts or any(start + size > units for start in starts):
        item.refuse('starts', starts,
                    f'starts that end within {units} units')
    order = item.integers('order', starts)
    if sorted(order) != sorted(starts):
        item.refuse('order', order, 'the same numbers as starts')
    profile = spec.InstanceProfile(
        enum=item.integer('enum'),
        profile_id=item.integer('id'),
        name=item.text('name'),
        slices=item.integer('slices', minimum=1),
        memory_mib=item.integer('memory_mib', minimum=1),
        max_instances=item.integer('max', minimum=1),
        size=size, starts=starts, order=order,
        multiprocessors=item.integer('multiprocessors'),
        copy_engines=item.integer('copy_engines'),
        capabilities=item.integer('capabilities', 0),
        **{engine: item.integer(engine, 0) for engine in spec.ENGINES})
    item.done()
    return profile


def _compute_profile(item):
    profile = spec.ComputeProfile(
        enum=item.integer('enum'), slices=item.integer('slices', minimum=1),
        max_instances=item.integer('max', minimum=1))
    item.done()
    return profile


def _vgpu_type(item, mig):
    profile_id = item.integer('profile', None)
    if profile_id is not None and (
            mig is None or mig.by_id(profile_id) is None):
        item.refuse('profile', profile_id, "one of the profiles' ids")
    kind = spec.VgpuType(
        type_id=item.integer('id', minimum=1),
        name=item.text('name'),
        vgpu_class=item.text('class'),
        framebuffer_mib=item.integer('framebuffer_mib', minimum=1),
        max_instances=item.integer('max', minimum=1),
        profile_id=profile_id,
        per_instance=item.integer(
            'per_instance', None if profile_id is None else 1))
    item.done()
    return kind
