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

"""From the configuration file to policies, with every mistake named."""

from __future__ import annotations

import dataclasses
import re

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import policy

_NAME = re.compile(r'[A-Za-z0-9_.-]+', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the operator decided about this host's GPUs.

    ``policies`` is None where none are configured.
    """

    policies: tuple[policy.Policy, ...] | None = None
    ignored_addresses: frozenset[model.PciAddress] = frozenset()
    ignored_uuids: frozenset[str] = frozenset()

    def ignores(self, gpu: model.Gpu) -> bool:
        """Whether ``[gpu] ignored_devices`` names this GPU."""
        return (gpu.address in self.ignored_addresses
                or (gpu.uuid or '').lower() in self.ignored_uuids)

    def policy_for(self, gpu: model.Gpu) -> policy.Policy | None:
        """The policy that governs ``gpu``; None if it is not offered."""
        if self.ignores(gpu):
            return None
        return policy.choose(gpu, self.policies)


def read(conf: cfg.ConfigOpts) -> Settings:
    """Read ``[gpu]`` and the policies that it names.

    :raises InvalidConfiguration: naming group, option and what is right.
    """
    gpu_conf.register_opts(conf)
    names = conf.gpu.policies
    for name in names:
        if not _NAME.fullmatch(name):
            raise _invalid('gpu', 'policies', name,
                           'expected letters, digits, "_", "-" or "."')
        if names.count(name) > 1:
            raise _invalid('gpu', 'policies', name, 'named twice')
    addresses, uuids = _ignored(conf.gpu.ignored_devices)
    return Settings(
        policies=tuple(_policy(conf, name) for name in names) or None,
        ignored_addresses=addresses, ignored_uuids=uuids)


def _ignored(devices):
    addresses, uuids = set(), set()
    for device in devices:
        if device.upper().startswith('GPU-'):
            uuids.add(device.lower())
            continue
        try:
            addresses.add(model.PciAddress.parse(device))
        except exception.InvalidPciAddress:
            raise _invalid(
                'gpu', 'ignored_devices', device,
                'expected a PCI address such as 0000:3b:00.0 or a UUID '
                'such as GPU-4f2c6a3b-...') from None
    return frozenset(addresses), frozenset(uuids)


def _policy(conf, name):
    group = gpu_conf.policy_group(name).name
    values = gpu_conf.register_policy(conf, name)
    mode = _value(values, group, 'mode')
    if mode is None:
        raise _invalid(group, 'mode', '(unset)', 'required: one of ' +
                       ', '.join(item.value for item in policy.Mode))
    if mode == policy.Mode.VGPU.value and not values.vgpu_types:
        raise _invalid(group, 'vgpu_types', '(unset)',
                       'mode vgpu needs at least one type, such as T4-2B')
    if mode != policy.Mode.MIG.value and values.profiles:
        raise _invalid(group, 'profiles', ','.join(values.profiles),
                       'only mode mig takes profiles')
    return policy.Policy(
        name=name, mode=policy.Mode(mode),
        match_address=tuple(_addresses(values, group)),
        match_uuid=tuple(_value(values, group, 'match_uuid')),
        match_model=tuple(_value(values, group, 'match_model')),
        match_numa_node=tuple(_value(values, group, 'match_numa_node')),
        profiles=tuple(values.profiles),
        vgpu_types=tuple(values.vgpu_types))


def _addresses(values, group):
    for text in values.match_address:
        try:
            yield model.PciAddress.parse(text)
        except exception.InvalidPciAddress:
            raise _invalid(group, 'match_address', text,
                           'expected a PCI address such as '
                           '0000:3b:00.0') from None


def _value(values, group, option):
    try:
        return values[option]
    except (cfg.ConfigFileValueError, ValueError) as error:
        raise _invalid(group, option, '(see reason)', str(error)) from error


def _invalid(group, option, value, reason):
    return exception.InvalidConfiguration(
        group=group, option=option, value=value, reason=reason)
