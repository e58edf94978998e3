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


"""Names of resource providers, resource classes and traits.

A provider's name is its identity: Cyborg's conductor derives the provider's
UUID from it. So a name depends on the host, the GPU's address and what is
offered there, and on nothing that can change while servers come and go.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import uuid

import os_resource_classes as orc

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers

PROVIDER_NAME_MAX = 200
"""Placement's limit on a provider's name, in characters."""
CUSTOM_NAME_MAX = 255
"""Placement's limit on a resource class and on a trait, in characters."""

VENDOR = 'NVIDIA'
"""Vendor 10de, as the driver in Cyborg's tree spells it in its traits."""

_ADDRESS_MAX = len('01234567:00:00.0')
_LABEL_MAX = 40
_HOST_MAX = PROVIDER_NAME_MAX - len('_gpu_') - _ADDRESS_MAX - 1 - _LABEL_MAX

_DIGEST_LENGTH = 12
_UNSAFE = re.compile(r'[^A-Za-z0-9._-]')
_NOT_CUSTOM = re.compile(r'[^A-Z0-9]+')
_PROVIDER = re.compile(
    r'(?P<host>.+)_gpu_'
    r'(?P<gpu>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])_'
    r'(?P<label>[A-Za-z0-9._-]+)', re.ASCII)
_MIG_PROFILE = re.compile(r'(\d+c\.)?\d+g\.\d+gb', re.ASCII)


def digest(text: str, length: int = _DIGEST_LENGTH) -> str:
    """``length`` hexadecimal digits that stand for ``text``."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _shortened(text: str, limit: int) -> str:
    return text[:limit - _DIGEST_LENGTH - 1] + '-' + digest(text)


def _safe(text: str, limit: int) -> str:
    """``text`` if it is short and plain, else a similar text with a digest.

    Only letters, digits, ``.``, ``_`` and ``-`` are kept: no colon, because
    it separates the parts of an address, and nothing that has to be quoted
    in the query of a URL.
    """
    if len(text) <= limit and not _UNSAFE.search(text):
        return text
    likeness = _UNSAFE.sub('-', text)[:limit - _DIGEST_LENGTH - 1]
    return f'{likeness}-{digest(text)}'


def label(offer: offers.Offer) -> str:
    """The last part of an offer's provider name, at most 40 characters.

    ``passthrough`` for a whole GPU, else the profile, with ``.`` for the
    ``+`` that a URL's query would turn into a space: ``1g.10gb.me``.
    """
    if offer.mode is policy.Mode.PASSTHROUGH:
        return offer.mode.value
    return _safe(offer.profile.replace('+', '.'), _LABEL_MAX)


def provider_name(hostname: str, offer: offers.Offer) -> str:
    """The name of an offer's deployable and resource provider.

    :param hostname: the compute node's hypervisor_hostname. If it is too
        long or has unusual characters, it is replaced by a similar text with
        a digest, the same for every GPU of the host.
    :returns: ``<hostname>_gpu_<address>_<label>``, at most 200 characters.
        It never equals the name of one of Nova's own PCI providers,
        ``<hostname>_<ADDRESS>``.
    :raises InvalidValue: if ``hostname`` is empty.
    """
    if not hostname:
        raise exception.InvalidValue(
            what='host name', value=hostname,
            expected="expected the compute node's hypervisor_hostname")
    return f'{_safe(hostname, _HOST_MAX)}_gpu_{offer.gpu}_{label(offer)}'


@dataclasses.dataclass(frozen=True)
class ProviderName:
    """The parts of a provider's name.

    :ivar host: the compute node's name, or a similar text with a digest.
    :ivar gpu: PCI address.
    :ivar label: see :func:`label`.
    """

    host: str
    gpu: str
    label: str


def parse_provider_name(name: str) -> ProviderName | None:
    """Parse a name of :func:`provider_name`; None if it is not one."""
    found = _PROVIDER.fullmatch(name)
    return found and ProviderName(**found.groupdict())


def provider_uuid(name: str) -> str:
    """The UUID that Cyborg's conductor gives to a provider by its name."""
    return str(uuid.uuid3(uuid.NAMESPACE_DNS, name))


def token(text: str) -> str:
    """``text`` in the characters of custom names: A-Z, 0-9 and ``_``.

    In a GPU instance profile ``+`` and ``-`` mean opposite things and must
    not become the same underscore: ``1g.24gb+me`` becomes ``1G_24GB_ME``
    and ``1g.24gb-me`` becomes ``1G_24GB_NOME``. The hyphens of a vGPU type
    only separate: ``T4-2B`` becomes ``T4_2B``, as in Cyborg's own driver.
    """
    if _MIG_PROFILE.match(text):
        text = text.replace('-', '_no')
    plain = _NOT_CUSTOM.sub('_', text.upper()).strip('_')
    return plain or digest(text).upper()


def custom(*parts: str) -> str:
    """A name for Placement: ``CUSTOM_`` and the parts' tokens.

    The name has at most 255 characters; a longer one is cut and ends in a
    digest of the whole name.
    """
    name = '_'.join(('CUSTOM', *(token(part) for part in parts)))
    if len(name) > CUSTOM_NAME_MAX:
        name = _shortened(name, CUSTOM_NAME_MAX).replace('-', '_').upper()
    return name


def without_vendor(name: str) -> str:
    """NVML's name of a model, without a leading NVIDIA.

    Older drivers omit NVIDIA. What is made from the name must not depend on
    the driver's release.
    """
    return re.sub(r'^nvidia\s+(?=\S)', '', name, flags=re.IGNORECASE)


def resource_class(offer: offers.Offer) -> str:
    """The resource class of an offer's inventory.

    PGPU for a whole GPU, ``CUSTOM_NVIDIA_<PROFILE>`` otherwise. Each profile
    has its own class, so that a quota can name it. The class is never VGPU,
    because Nova's own mdev code would claim it. The class of a group of GPUs
    includes their model: ``CUSTOM_NVIDIA_NVLINK_2_H100_80GB_HBM3``.
    """
    if offer.mode is policy.Mode.NVLINK:
        return custom(VENDOR, offer.profile, without_vendor(offer.board))
    if offer.mode is policy.Mode.PASSTHROUGH:
        return orc.PGPU
    return custom(VENDOR, offer.profile)
