# SPDX-License-Identifier: Apache-2.0

"""Reading policies from the configuration, with an error for each mistake."""

from __future__ import annotations

import dataclasses
import re

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import validation
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import roles

_NAME = re.compile(r'[A-Za-z0-9_.-]+', re.ASCII)

_PROJECT = 'project'
_AUTO = policy.Mode.AUTO.value
_ONLY_IN = {
    (policy.Mode.MIG.value,): ('profiles',),
    (policy.Mode.VGPU.value,): ('mixed_sizes',),
    (policy.Mode.PASSTHROUGH.value,): ('nvlink_not_isolated',),
    (policy.Mode.NVLINK.value,): ('nvlink_sizes',),
    (policy.Mode.VGPU.value, policy.Mode.MIG.value): (
        'vgpu_types', 'max_instances', 'fixed_vgpus', 'vgpu_scheduler',
        'vgpu_time_slice_us'),
}
"""Options by the only modes that support them."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the operator decided about this host's GPUs.

    ``policies`` is None if none is configured. The fields from ``prepare`` on
    are the options of ``[gpu]`` of that name.
    """

    policies: tuple[policy.Policy, ...] | None = None
    ignored_addresses: frozenset[model.PciAddress] = frozenset()
    ignored_uuids: frozenset[str] = frozenset()
    prepare: bool = True
    clean_whole_gpus: bool = True
    health_events: bool = True
    health_cordon_errors: int = 0
    health_ignored_xids: frozenset[int] = frozenset()
    bind_timeout: int | None = None
    orphan_grace: int = 300

    def ignores(self, gpu: model.Gpu) -> bool:
        """Whether ``[gpu] ignored_devices`` names this GPU."""
        return (gpu.address in self.ignored_addresses
                or (gpu.uuid or '').lower() in self.ignored_uuids)

    def policy_for(self, gpu: model.Gpu) -> policy.Policy | None:
        """The policy that governs ``gpu``; None if the GPU is not offered."""
        if self.ignores(gpu):
            return None
        return policy.choose(gpu, self.policies)

    def wants(self, gpu: model.Gpu, role: policy.Mode | None = None
              ) -> readiness.Wants:
        """What the GPU's policy needs of it.

        If the operator configured no policies, a GPU is offered as it was
        found, and only its driver is changed. Without ``[gpu] prepare`` the
        driver is not changed either.

        :param role: the role that a GPU in mode auto has by its claims, or
            is to take; None if it is idle. Ignored for other modes.
        """
        governing = self.policy_for(gpu)
        if governing is None:
            return readiness.Wants()
        if governing.mode is policy.Mode.AUTO:
            return self._wants_in_role(gpu, governing, role)
        if not self.prepare:
            return readiness.Wants()
        wanted = readiness.wants(gpu, governing)
        return (readiness.driver_only(gpu, wanted) if self.policies is None
                else wanted)

    def _wants_in_role(self, gpu: model.Gpu, governing: policy.Policy,
                       asked: policy.Mode | None) -> readiness.Wants:
        role = (asked or roles.in_force(gpu, ())
                or roles.resting(gpu, governing))
        wanted = readiness.wants(gpu, governing.in_role(role))
        if role in roles.PARTITIONED and whole.is_vfio(gpu.driver):
            # Only the nvidia driver can partition a GPU, so it must be bound
            # to nvidia, even if the operator bound it to vfio-pci.
            return dataclasses.replace(wanted, driver=whole.NVIDIA)
        return wanted


def read(conf: cfg.ConfigOpts) -> Settings:
    """Read ``[gpu]`` and the policies that it names."""
    gpu_conf.register_opts(conf)
    names = validation.value(conf, 'gpu', 'policies')
    for name in names:
        if not _NAME.fullmatch(name):
            raise validation.invalid(
                'gpu', 'policies', name,
                'expected letters, digits, "_", "-" or "."')
        if names.count(name) > 1:
            raise validation.invalid('gpu', 'policies', name, 'named twice')
        gpu_conf.register_policy(conf, name)
    validation.check_options(conf, names)
    addresses, uuids = _ignored(conf.gpu.ignored_devices)
    return Settings(
        policies=tuple(_policy(conf, name) for name in names) or None,
        ignored_addresses=addresses, ignored_uuids=uuids,
        prepare=conf.gpu.prepare,
        clean_whole_gpus=conf.gpu.clean_whole_gpus,
        health_events=conf.gpu.health_events,
        health_cordon_errors=conf.gpu.health_cordon_errors,
        health_ignored_xids=frozenset(conf.gpu.health_ignored_xids),
        bind_timeout=conf.gpu.bind_timeout,
        orphan_grace=conf.gpu.orphan_grace)


def _ignored(devices):
    addresses, uuids = set(), set()
    for device in devices:
        if device.upper().startswith('GPU-'):
            uuids.add(device.lower())
            continue
        try:
            addresses.add(model.PciAddress.parse(device))
        except exception.InvalidValue:
            raise validation.invalid(
                'gpu', 'ignored_devices', device,
                'expected a PCI address such as 0000:3b:00.0 or a UUID '
                'such as GPU-4f2c6a3b-...') from None
    return frozenset(addresses), frozenset(uuids)


def _policy(conf, name):
    group = gpu_conf.policy_group(name).name
    values = conf[group]
    for where, option, reason in _mistakes(conf.gpu, values, group):
        value = conf[where][option]
        raise validation.invalid(
            where, option, '(unset)' if value in (None, []) else value,
            reason)
    return policy.Policy(
        name=name, mode=policy.Mode(values.mode),
        match_address=tuple(_addresses(values, group)),
        match_uuid=tuple(values.match_uuid),
        match_model=tuple(values.match_model),
        match_numa_node=tuple(values.match_numa_node),
        profiles=tuple(values.profiles),
        vgpu_types=tuple(values.vgpu_types),
        max_instances=tuple(values.max_instances.items()),
        fixed_vgpus=tuple(values.fixed_vgpus.items()),
        mixed_sizes=values.mixed_sizes,
        scheduler=_scheduler(values),
        time_slice=_nanoseconds(values.vgpu_time_slice_us),
        isolated=values.isolation == _PROJECT,
        roles=tuple(policy.Mode(role) for role in values.roles),
        nvlink_not_isolated=values.nvlink_not_isolated,
        nvlink_sizes=tuple(sorted(set(values.nvlink_sizes))))


def _mistakes(gpu, values, group):
    """The options that are missing, exclude each other or have no effect.

    :returns: for each its group and name, and what would be right.
    """
    mode = values.mode
    if mode is None:
        yield group, 'mode', 'required: one of ' + ', '.join(
            item.value for item in policy.Mode)
    modes = {mode}
    if mode == _AUTO:
        modes = {*values.roles}
        yield from _mistakes_of_auto(gpu, values, group)
    elif values.roles:
        yield group, 'roles', 'only supported by mode auto'
    if policy.Mode.VGPU.value in modes and not (
            values.vgpu_types or values.fixed_vgpus):
        yield group, 'vgpu_types', (
            f'{"role" if mode == _AUTO else "mode"} vgpu needs at least one '
            'type, such as T4-2B')
    for only, options in _ONLY_IN.items():
        for option in options:
            if values[option] and modes.isdisjoint(only):
                yield group, option, 'only supported by ' + ' and '.join(
                    f'mode {item}' for item in only)
    yield from _mistakes_of_sharing(values, group, modes)


def _mistakes_of_sharing(values, group, modes):
    """The options of vGPUs that the driver or the agent would refuse."""
    if values.mixed_sizes and (_scheduler(values)
                               is model.SchedulerPolicy.FIXED_SHARE):
        yield group, 'vgpu_scheduler', (
            'mixed_sizes needs best-effort or equal-share')
    if values.vgpu_time_slice_us and not values.vgpu_scheduler:
        yield group, 'vgpu_time_slice_us', 'needs vgpu_scheduler'
    if values.isolation == _PROJECT and modes.isdisjoint(
            (policy.Mode.VGPU.value, policy.Mode.MIG.value)):
        yield group, 'isolation', 'only supported by mode vgpu and mode mig'
    if values.isolation == _PROJECT and values.fixed_vgpus:
        yield group, 'isolation', (
            'excludes fixed_vgpus: Nova assigns those without a bind that '
            'the agent could refuse')


def _mistakes_of_auto(gpu, values, group):
    """The options with which a GPU cannot change its role."""
    if len({*values.roles}) < len(values.roles):
        yield group, 'roles', 'named twice'
    if len(values.roles) < 2:
        yield group, 'roles', (
            f'mode auto needs at least two of {", ".join(gpu_conf.ROLES)}; '
            'for a single one, set mode to it')
    if values.fixed_vgpus:
        yield group, 'fixed_vgpus', (
            'mode auto excludes it: those vGPUs exist before any server')
    if not gpu.prepare:
        yield 'gpu', 'prepare', (
            f'mode auto of [{group}] needs true: the agent changes the role')
    if (policy.Mode.PASSTHROUGH.value in values.roles
            and not gpu.clean_whole_gpus):
        yield 'gpu', 'clean_whole_gpus', (
            f'role passthrough of [{group}] needs true: a GPU is reset '
            'before it changes from a whole one to another role')


def _scheduler(values):
    name = values.vgpu_scheduler
    return model.SchedulerPolicy(name) if name else None


def _nanoseconds(microseconds):
    return microseconds and microseconds * 1000


def _addresses(values, group):
    for text in values.match_address:
        try:
            yield model.PciAddress.parse(text)
        except exception.InvalidValue:
            raise validation.invalid(
                group, 'match_address', text,
                'expected a PCI address such as 0000:3b:00.0') from None
