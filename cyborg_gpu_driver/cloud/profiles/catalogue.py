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

"""The profiles that the GPUs of a cloud offer. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection
from collections.abc import Iterable

from cyborg_gpu_driver.cloud import providers
from cyborg_gpu_driver.cloud.profiles import resources
from cyborg_gpu_driver.report.content import names

_SELECTING = tuple(f'CUSTOM_GPU_{kind}_'
                   for kind in ('MODEL', 'MEMORY', 'KIND', 'ARCH'))
_NUMA = 'CUSTOM_GPU_NUMA_'


@dataclasses.dataclass(frozen=True)
class Entry:
    """A profile, with its sums over the whole cloud.

    :ivar label: as in a provider's name: ``1g.10gb``, ``passthrough``.
    :ivar traits: the traits that all GPUs with the profile have in common, of
        the kinds by which a device profile selects GPUs.
    :ivar gpus: how many GPUs offer it.
    :ivar free: how many servers can get one now, if nothing else is created
        on these GPUs meanwhile.
    """

    label: str
    resource_class: str
    traits: tuple[str, ...]
    hosts: tuple[str, ...]
    gpus: int
    total: int
    used: int
    reserved: int
    free: int


def entries(found: Iterable[providers.Provider], host: str | None = None,
            model: str | None = None, kind: str | None = None,
            numa: bool = False) -> tuple[Entry, ...]:
    """Return the profiles that providers offer, sorted by label.

    A provider without an inventory offers nothing.

    :param host: only this compute node.
    :param model: only GPUs whose model name contains this text, written as
        NVML does (``A100-SXM4``) or as in the trait (``A100_SXM4``).
    :param kind: only ``passthrough``, ``vgpu`` or ``mig``.
    :param numa: whether the traits include NUMA nodes.
    """
    chosen = sorted(
        (provider for provider in found
         if provider.resource_class is not None
         and (host is None or provider.host == host)
         and (model is None
              or names.token(model) in (provider.fact('MODEL') or ''))
         and (kind is None
              or provider.fact('KIND') == names.token(kind))),
        key=_key)
    wanted = (*_SELECTING, _NUMA) if numa else _SELECTING
    return tuple(_entry(list(group), wanted)
                 for _, group in itertools.groupby(chosen, _key))


def asking(device_profiles: Iterable[resources.DeviceProfile],
           resource_class: str) -> tuple[str, ...]:
    """Return the names of the device profiles that ask for a resource class.
    """
    key = f'resources:{resource_class}'
    return tuple(sorted(
        profile.name for profile in device_profiles
        if any(key in dict(group) for group in profile.groups)))


def naming(flavors: Iterable[resources.Flavor],
           device_profiles: Collection[str]) -> tuple[str, ...]:
    """Return the names of the flavors that name one of the device profiles."""
    return tuple(sorted(flavor.name for flavor in flavors
                        if flavor.profile in device_profiles))


def _key(provider):
    return provider.label, provider.resource_class


def _entry(found, wanted):
    common = frozenset.intersection(*(one.traits for one in found))
    return Entry(
        found[0].label, found[0].resource_class,
        tuple(sorted(trait for trait in common if trait.startswith(wanted))),
        tuple(sorted({one.host for one in found})),
        len({(one.host, one.gpu) for one in found}),
        sum(one.total for one in found), sum(one.used for one in found),
        sum(one.reserved for one in found), sum(one.free for one in found))
