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

"""The vGPU options of Cyborg's in-tree GPU driver and of Nova, to import.

Cyborg's driver reads ``[gpu_devices] enabled_vgpu_types`` and a group
``[vgpu_TYPE]`` for each type (cyborg/conf/devices.py). Nova reads
``[devices] enabled_mdev_types`` and groups ``[mdev_TYPE]``
(nova/conf/devices.py). Both services have a type's group only if they enable
the type.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator
from collections.abc import Sequence

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host.snapshot import model

_TYPE = re.compile(r'nvidia-\d+', re.ASCII)
_UNSET = '(unset)'
_UNREADABLE = (cfg.Error, ValueError, RecursionError)
"""Exceptions of oslo.config for a value of another type, or with a ``$NAME``
that names an unknown option or the option itself."""
_MDEV_CLASS = r'^(VGPU|CUSTOM_[A-Z0-9_]+)$'


class Service(enum.Enum):
    """The service that an option belongs to."""

    CYBORG = 'Cyborg'
    NOVA = 'Nova'


_LISTS = {Service.CYBORG: ('gpu_devices', 'enabled_vgpu_types', 'vgpu_'),
          Service.NOVA: ('devices', 'enabled_mdev_types', 'mdev_')}


@dataclasses.dataclass(frozen=True)
class EnabledType:
    """One type of which one service creates vGPUs."""

    service: Service
    path: str
    """The file that names the addresses, or enables the type without any."""
    type_id: str
    """The mdev type, ``nvidia-231``."""
    addresses: tuple[model.PciAddress, ...] = ()
    """GPUs or VFs, each once; empty (only for Nova) for all of the type."""
    resource_class: str = 'VGPU'
    """Nova's ``mdev_class``."""
    max_instances: int | None = None
    """Nova's limit for all GPUs of the host together."""

    @property
    def group(self) -> str:
        """The type's group: ``vgpu_nvidia-231``, ``mdev_nvidia-231``."""
        return _LISTS[self.service][2] + self.type_id

    @property
    def where(self) -> str:
        """For people: file and group."""
        return f'{self.path}: [{self.group}]'


@dataclasses.dataclass(frozen=True)
class Legacy:
    """The vGPU options in the files."""

    types: tuple[EnabledType, ...]
    """The types of Cyborg, then of Nova, each in the order of its list."""
    foreign_types: tuple[str, ...] = ()
    """Nova's types of devices that are not from NVIDIA."""
    filters_functions: bool = False
    """``[gpu_devices] filter_sriov_vfs``."""
    has_policies: bool = False
    """``[gpu] policies`` names some already."""

    def of(self, service: Service) -> tuple[EnabledType, ...]:
        """The types of one service."""
        return tuple(item for item in self.types if item.service is service)


def error(item: EnabledType, value: object, reason: str
          ) -> exception.LegacyOptionError:
    """The error to raise for one of the type's addresses."""
    return exception.LegacyOptionError(
        path=item.path, group=item.group, option='device_addresses',
        value=value, reason=reason)


def read(paths: Sequence[str]) -> Legacy:
    """Read configuration files as oslo.config does; later files override
    earlier ones.

    :raises InvalidValue: if a file cannot be read.
    :raises LegacyOptionError: naming file, group, option and what is right.
    """
    conf = cfg.ConfigOpts()
    conf.register_opts(
        [cfg.ListOpt('enabled_vgpu_types', default=[]),
         cfg.BoolOpt('filter_sriov_vfs', default=False)],
        group='gpu_devices')
    conf.register_opt(
        cfg.ListOpt('enabled_mdev_types', default=[],
                    deprecated_name='enabled_vgpu_types'), group='devices')
    gpu_conf.register_opts(conf)
    try:
        conf([], project='cyborg', default_config_files=list(paths),
             default_config_dirs=[])
    except (cfg.Error, OSError, UnicodeDecodeError) as problem:
        raise exception.InvalidValue(
            what='FILE', value=', '.join(paths),
            expected=f'expected files of oslo.config: {problem}'
        ) from problem
    reader = _Reader(conf, paths)
    types = (*reader.types(Service.CYBORG), *reader.types(Service.NOVA))
    if not types:
        raise exception.LegacyOptionError(
            path=', '.join(paths), group='gpu_devices',
            option='enabled_vgpu_types', value=_UNSET,
            reason='neither this nor [devices] enabled_mdev_types has an '
                   'NVIDIA type, so there is nothing to import')
    return Legacy(
        types=types, foreign_types=tuple(reader.foreign),
        filters_functions=reader.value('gpu_devices', 'filter_sriov_vfs'),
        has_policies=bool(reader.value('gpu', 'policies')))


class _Reader:
    """Reads the group of each type that a list of types names."""

    def __init__(self, conf, paths):
        self._conf = conf
        self._paths = paths
        self.foreign = []

    def types(self, service: Service) -> Iterator[EnabledType]:
        """The types of NVIDIA; adds Nova's other types to ``foreign``."""
        group, option, prefix = _LISTS[service]
        names = self.value(group, option)
        for name in names:
            if names.count(name) > 1:
                raise self._error(group, option, name, 'named twice')
            if _TYPE.fullmatch(name):
                yield self._type(service, prefix + name, name, len(names))
            elif service is Service.NOVA:
                self.foreign.append(name)
            else:
                raise self._error(group, option, name, 'expected an NVIDIA '
                                  'mdev type, such as nvidia-231')

    def _type(self, service, group, name, count):
        is_nova = service is Service.NOVA
        self._register(group, name, is_nova)
        addresses = tuple(dict.fromkeys(self._addresses(group)))
        if not addresses and (count > 1 or not is_nova):
            raise self._error(
                group, 'device_addresses', _UNSET,
                'required, such as 0000:3b:00.0: ' + (
                    'with several types, each needs addresses; if one has '
                    'none, Nova uses only the first type' if is_nova
                    else "Cyborg's driver ignores a type without them"))
        option = ('device_addresses' if addresses else _LISTS[service][1])
        return EnabledType(
            service=service, type_id=name, addresses=addresses,
            path=self._path(group if addresses else _LISTS[service][0],
                            option),
            resource_class=(self.value(group, 'mdev_class') if is_nova
                            else 'VGPU'),
            max_instances=(self.value(group, 'max_instances') if is_nova
                           else None))

    def _register(self, group, name, is_nova):
        former = None
        if is_nova:
            self._conf.register_opts([
                cfg.IntOpt('max_instances', min=1),
                cfg.StrOpt('mdev_class', default='VGPU',
                           regex=_MDEV_CLASS)], group=group)
            # Nova's group formerly had the name of Cyborg's group. If Cyborg
            # enables the type, the group belongs to Cyborg.
            if name not in self.value('gpu_devices', 'enabled_vgpu_types'):
                former = f'vgpu_{name}'
        self._conf.register_opt(cfg.ListOpt(
            'device_addresses', default=[], deprecated_group=former),
            group=group)

    def _addresses(self, group):
        for text in self.value(group, 'device_addresses'):
            try:
                yield model.PciAddress.parse(text)
            except exception.InvalidPciAddress:
                raise self._error(
                    group, 'device_addresses', text, 'expected a PCI '
                    'address such as 0000:3b:00.0') from None

    def value(self, group, option):
        try:
            return self._conf[group][option]
        except _UNREADABLE as problem:
            raise self._error(group, option, '(see reason)',
                              str(problem)) from problem

    def _path(self, group, option):
        # An option that cannot be read has no location either. All files
        # are named then.
        try:
            location = self._conf.get_location(option, group)
        except _UNREADABLE:
            location = None
        if location is not None and location.detail in self._paths:
            return location.detail
        return ', '.join(self._paths)

    def _error(self, group, option, value, reason):
        return exception.LegacyOptionError(
            path=self._path(group, option), group=group, option=option,
            value=value, reason=reason)
