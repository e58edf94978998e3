# SPDX-License-Identifier: Apache-2.0

"""Read the YAML files of models and hosts into the values of ``spec``."""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import uuid
from typing import Any

import pynvml
import yaml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.simulator import spec

# The schema of the YAML files of simulated hosts.

ALL = 'all'
"""For ``vfs``: as many virtual functions as the model has."""
SWITCHES = 'switches'
"""For ``nvlink``: the links lead to the host's NVSwitches."""

_TEXT = {'type': 'string', 'minLength': 1}
_COUNT = schema.integer(0)
_ADDRESS = schema.matching(
    '[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f][.][0-7]', 'a PCI address in quotes',
    "'0000:3b:00.0'")


def _digits(count: int) -> dict[str, Any]:
    """Schema of hexadecimal digits. YAML may read unquoted ones as a number.
    """
    return schema.matching(
        f'[0-9a-f]{{{count}}}',
        f'{count} lower-case hexadecimal digits in quotes')


_GPU = schema.mapping({'model': _TEXT, 'address': _ADDRESS}, {
    'vfs': {'anyOf': [{'const': ALL}, _COUNT]},
    'mig': schema.TRUTH,
    'numa_node': schema.integer(-1),
    'iommu_group': _COUNT,
    'driver': {'enum': ['nvidia', 'vfio-pci', 'nouveau', None]},
    'framework': {'enum': list(spec.FRAMEWORKS)},
    'nvlink': {'anyOf': [{'const': SWITCHES}, schema.listing(_ADDRESS)]}})
_FUNCTION = schema.mapping({
    'address': _ADDRESS,
    'vendor': _digits(4),
    'device': _digits(4),
    'class': _digits(6)}, {
    'driver': _TEXT,
    'numa_node': {'type': 'integer'},
    'iommu_group': _COUNT})
HOST = schema.mapping({'driver_version': _TEXT}, {
    'virtual': schema.TRUTH,
    'container': schema.TRUTH,
    'dcgm': schema.TRUTH,
    'unpatched_nova': schema.TRUTH,
    'keeps_mig': schema.TRUTH,
    'fabric_mode': {'enum': [0, 1, 2]},
    'clique': schema.matching(
        '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[.][0-9]{1,9}',
        'the UUID of an NVLink cluster, a dot and the number of a clique',
        '51d4ba7b-6d2a-4b39-9e4b-1c4a4bd0f1a2.3'),
    'gpus': schema.listing(_GPU),
    'nvswitches': schema.listing(_FUNCTION),
    'functions': schema.listing(_FUNCTION)})

HERE = pathlib.Path(__file__).parent
# The same loader, written in C, if PyYAML was built with it.
_LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
_SUFFIXES = ('.yaml', '.yml')
_INSTANCES = {'max': 'max_instances'}
_SPACE = uuid.UUID('7c7d2f0e-52f0-4a3c-9d5e-6f1f0a8f7a11')
"""The namespace of all made-up UUIDs, so that they never change."""


def names() -> list[str]:
    """Names of the hosts that are installed with the library."""
    return sorted(path.stem for path in (HERE / 'hosts').glob('*.yaml'))


def model_names() -> list[str]:
    """Names of the models that are installed with the library."""
    return sorted(path.stem for path in (HERE / 'models').glob('*.yaml'))


def made_up_uuid(*parts: object) -> str:
    """Return a UUID that is always the same for the same parts."""
    return str(uuid.uuid5(_SPACE, '/'.join(str(part) for part in parts)))


def load(name_or_path: str) -> spec.Host:
    """Read a host, by its name or by the path of a YAML file.

    :raises HostUnusable: if there is no such host.
    :raises DocumentError: if a file has errors.
    """
    return _Reader(_find(name_or_path)).host()


def load_model(name: str) -> spec.Model:
    """Read one model that is installed with the library."""
    return _model(name, hashlib.sha256())


def _find(name_or_path):
    if name_or_path in names():
        return HERE / 'hosts' / f'{name_or_path}.yaml'
    path = pathlib.Path(name_or_path)
    if path.suffix in _SUFFIXES or os.sep in name_or_path:
        return path
    raise exception.HostUnusable(
        f'simulated machine {name_or_path!r}: no such host; give the path of '
        'a .yaml file or one of ' + ', '.join(names()))


def _read(path, digest):
    try:
        if path.exists() and not path.is_file():
            # Devices such as /dev/full have no end.
            raise exception.HostUnusable(
                f'simulated machine {str(path)!r}: not a file')
        data = path.read_bytes()
    except OSError as error:
        raise exception.HostUnusable(
            f'simulated machine {str(path)!r}: {error.strerror}') from error
    digest.update(data)
    return data


class _Reader:
    """Reads one host file and the models that it names."""

    def __init__(self, path):
        self._path = path
        self._digest = hashlib.sha256()
        self._place = schema.Place(str(path))
        self._models = {}
        self._taken = set()

    def host(self):
        content = {
            **_parse_host(self._path, _read(self._path, self._digest))}
        switches = self._functions(content.pop('nvswitches', ()), 'nvswitches')
        addresses = tuple(function.address for function in switches)
        functions = switches + self._functions(
            content.get('functions', ()), 'functions')
        found = [self._gpu(item, self._place.below('gpus', number), addresses)
                 for number, item in enumerate(content.get('gpus', ()))]
        found.sort(key=lambda gpu: gpu['address'])
        gpus = tuple(spec.Gpu(minor=minor, **gpu)
                     for minor, gpu in enumerate(found))
        self._check_peers(gpus, addresses)
        return spec.Host(
            name=self._path.stem, digest=self._digest.hexdigest(),
            **{**content, 'gpus': gpus, 'functions': functions})

    def _gpu(self, item, place, switches):
        model = self._model(item['model'], place.below('model'))
        address = self._address(item, place)
        made_up = made_up_uuid(self._path.stem, address)
        mig = item.get('mig', False)
        if mig and model.mig is None:
            raise place.below('mig').wrong(
                mig, f'false: {model.name} has no MIG')
        return {
            'uuid': f'GPU-{made_up}',
            'serial': '1' + str(int(made_up[:8], 16)).zfill(12)[-12:],
            **{key: item[key] for key in item if key != 'nvlink'},
            'model': model,
            'vfs': _vfs(item.get('vfs', 0), place.below('vfs'), model),
            'nvlink_peers': _peers(item.get('nvlink', []),
                                   place.below('nvlink'), model, switches),
        }

    def _model(self, name, place):
        if name not in self._models:
            if name not in model_names():
                raise place.wrong(name,
                                  'one of ' + ', '.join(model_names()))
            self._models[name] = _model(name, self._digest)
        return self._models[name]

    def _address(self, item, place):
        address = item['address']
        if address in self._taken:
            raise place.below('address').wrong(
                address, 'an address used only once')
        self._taken.add(address)
        return address

    def _functions(self, found, key):
        for number, item in enumerate(found):
            self._address(item, self._place.below(key, number))
        return tuple(_made(spec.Function, item, {'class': 'class_code'})
                     for item in found)

    def _check_peers(self, gpus, switches):
        known = {gpu.address for gpu in gpus} | set(switches)
        for gpu in gpus:
            for peer in gpu.nvlink_peers:
                if peer not in known:
                    raise self._place.below('gpus').error(
                        f'{gpu.address} has the NVLink peer {peer}',
                        'expected a GPU or an NVSwitch of this file')


def _made(kind, item, renamed=None, **others):
    """Return a value of ``spec`` whose fields are mostly keys of a file."""
    renamed = renamed or {}
    return kind(**{
        **{renamed.get(key, key): tuple(value) if isinstance(value, list)
           else value for key, value in item.items()}, **others})


def _vfs(value, place, model):
    """The number of virtual functions that a GPU has at the start."""
    count = model.totalvfs if value == ALL else value
    if count > model.totalvfs:
        raise place.wrong(value, f"'all' or at most {model.totalvfs}")
    return count


def _peers(value, place, model, switches):
    """For each link, the address at its other end."""
    if value != SWITCHES:
        if len(value) > model.nvlinks:
            raise place.error(
                f'found {len(value)} addresses', 'expected at most '
                f'{model.nvlinks}, one for each link of {model.name}')
        return tuple(value)
    if not switches:
        raise place.wrong(value, 'nvswitches in the file')
    # Links are spread evenly over the switches.
    return tuple(switches[link % len(switches)]
                 for link in range(model.nvlinks))


def _model(name, digest):
    """Read a model and the one that it is ``like``, if it is like another."""
    parts = []
    while name is not None:
        path = HERE / 'models' / f'{name}.yaml'
        parts.append((path.stem, _read(path, digest)))
        name = _load(path, parts[-1][1]).get('like')
    return _parse_model(tuple(parts))


# One process may create many machines of a few hosts and models.
@functools.lru_cache(maxsize=64)
def _parse_host(path, data):
    """Return the content of a file.

    Tests check the files that are installed with the library.
    """
    value = _load(path, data)
    if path.parent.parent != HERE:
        schema.check(value, HOST, schema.Place(str(path)))
    return value


@functools.lru_cache(maxsize=64)
def _load(path, data):
    """Return the content of a file, which must be YAML of a mapping."""
    place = schema.Place(str(path))
    try:
        value = yaml.load(data, _LOADER)
    except yaml.YAMLError as error:
        raise place.error(f'not YAML: {error}', 'correct it there') from error
    if not isinstance(value, dict):
        raise place.wrong(value, 'a mapping')
    return value


@functools.lru_cache(maxsize=64)
def _parse_model(parts):
    """Return a model from the files of it and of what it is like."""
    content, mig = {}, None
    for name, data in reversed(parts):
        own = dict(_load(name, data))
        own.pop('like', None)
        if own.get('mig') and mig:
            own['mig'] = {**mig, **own['mig']}
        content.update(own)
        mig = content.get('mig')
    sriov = content.pop('sriov', None) or {}
    return _made(
        spec.Model, {**content, **sriov},
        {'offset': 'vf_offset'},
        name=parts[0][0], mig=mig and _mig(mig),
        vgpu_types=tuple(map(_vgpu_type, content.get('vgpu_types', ()))),
        architecture=getattr(
            pynvml, f'NVML_DEVICE_ARCH_{content["architecture"].upper()}'))


def _mig(item):
    compute = item['compute_profiles']
    profiles = tuple(
        _made(spec.InstanceProfile, {'order': profile['starts'], **profile},
              {**_INSTANCES, 'id': 'profile_id'})
        for profile in item['profiles'])
    return spec.Mig(
        units=item['units'], needs_reset=item['needs_reset'],
        profiles=profiles, compute_profiles={
            count: tuple(_made(spec.ComputeProfile, profile, _INSTANCES)
                         for profile in compute.get(count, ()))
            for count in sorted({profile.slices for profile in profiles})})


def _vgpu_type(item):
    return _made(
        spec.VgpuType, {
            'per_instance': 1 if 'profile' in item else None, **item},
        {**_INSTANCES, 'id': 'type_id', 'class': 'vgpu_class',
         'profile': 'profile_id'})
