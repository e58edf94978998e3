# SPDX-License-Identifier: Apache-2.0

"""The options of ``[gpu]`` and of each ``[gpu_policy:NAME]``."""

from __future__ import annotations

import os
import re

from oslo_config import cfg

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy

CLOUD = 'gpu_cloud'
"""The section with the agent's user, read by keystoneauth."""
ACCESS_SECONDS = 60.0
"""How long an operation waits until all processes of this library on this host
have closed NVML, before a GPU is reset, is unbound or changes its MIG mode.
Those processes in turn wait as long until they may open it again."""
_RPC_SECONDS = 60.0
"""The default of rpc_response_timeout."""
_ANSWER_SECONDS = 10
"""Seconds for an operation of the privileged process, NVML's delays apart."""

ROLES = tuple(item.value for item in (
    policy.Mode.PASSTHROUGH, policy.Mode.MIG, policy.Mode.VGPU))
"""The roles that a GPU in mode auto can have."""


def _count(text: str) -> int:
    if not re.fullmatch('[1-9][0-9]{0,3}', text, re.ASCII):
        raise ValueError(f'{text!r} is not a number from 1 to 9999')
    return int(text)


GPU_OPTS = [
    cfg.ListOpt(
        'policies', default=[],
        help='Names of the [gpu_policy:NAME] groups, in order. The first '
             'policy that matches a GPU governs it. A GPU that no policy '
             'matches is not offered. If the list is empty, a GPU in MIG mode '
             'with virtual functions is offered by its MIG profiles, and '
             'every other GPU as a whole.'),
    cfg.ListOpt(
        'ignored_devices', default=[],
        help='PCI addresses or UUIDs of GPUs that the driver neither reports '
             'nor changes.'),
    cfg.StrOpt(
        'sysfs_root', default='/sys', advanced=True,
        help='Where sysfs is mounted.'),
    cfg.StrOpt(
        'state_path', default='/var/lib/cyborg/gpu',
        help='Directory of the records of the GPUs, their locks and the '
             'audit log. It must survive a reboot and belong to '
             'the user that runs cyborg-agent.'),
    cfg.BoolOpt(
        'prepare', default=True,
        help='Whether the agent makes idle GPUs ready for their policy, at '
             'its start and in each report: it sets the MIG mode, virtual '
             'functions, mixed-size mode and vGPU scheduler, creates fixed '
             'vGPUs, and binds a GPU in passthrough mode to vfio-pci. If '
             'false, the operator does all of this. Without policies, the '
             'agent only binds vfio-pci.'),
    cfg.BoolOpt(
        'clean_whole_gpus', default=True,
        help='Whether to reset a GPU in passthrough mode after each server, '
             'and to offer it again only when the reset has succeeded and its '
             'memory is found clean. If false, the GPU is offered again at '
             'once, as the server left it. A GPU that the kernel cannot reset '
             'needs false.'),
    cfg.IntOpt(
        'clean_poll_interval', default=5, min=0, advanced=True,
        help='Seconds between two requests to Placement by which the agent '
             'learns that a server has got a free whole GPU. With '
             'clean_whole_gpus, a server that lives less than the time '
             'between two reports is noticed too. A host with a free whole '
             'GPU makes one request each time, and one more for 90 seconds '
             'after a server got one: 1,000 hosts make 200 a second with 5. '
             '0 asks only in each report, also for the projects of servers '
             'with vGPUs or slices.'),
    cfg.BoolOpt(
        'health_events', default=True,
        help='Whether to listen for error events of NVML (XIDs), so that the '
             'driver stops offering a GPU as soon as it becomes unhealthy. If '
             'false, only each report checks health.'),
    cfg.IntOpt(
        'health_cordon_errors', default=0, min=0,
        help='Number of errors after which the driver cordons a GPU: it gets '
             'no new server until an operator uncordons it, even when it is '
             'healthy again. Errors count from the last "cyborg-gpu gpu '
             'uncordon" or "cyborg-gpu health clear" on. 0 never cordons a '
             'GPU.'),
    cfg.ListOpt(
        'health_ignored_xids', default=[],
        item_type=cfg.types.Integer(min=1),
        help='XIDs that never make a GPU unhealthy, in addition to XIDs of '
             "applications and those that NVIDIA's catalogue says to ignore."),
    cfg.IntOpt(
        'nvml_timeout', default=30, min=1, advanced=True,
        help='Seconds that NVML may take to read or change one GPU, and '
             'that a write to a file of the driver in sysfs may take. A GPU '
             'that takes longer counts as not answering: nothing new is '
             'created on it until the call has returned. Other GPUs remain '
             'in use unless the driver lets them wait too. A change of the '
             'MIG mode may take four times as long. Choose less than '
             '[DEFAULT] rpc_response_timeout, which is how long Cyborg '
             'waits.'),
    cfg.IntOpt(
        'bind_timeout', min=1, advanced=True,
        help='Seconds that a bind may take from its arrival. A bind that '
             'takes longer, because a command holds the GPU or NVML is slow, '
             'is refused or rolled back. Choose less than [DEFAULT] '
             'rpc_response_timeout of cyborg-conductor: after that, the '
             'conductor fails the request without notifying the agent. If '
             'unset, it is half of rpc_response_timeout in the configuration '
             'of the agent.'),
    cfg.IntOpt(
        'orphan_grace', default=300, min=0, advanced=True,
        help='Seconds to wait before an apparent leftover counts as one: '
             'before a bound handle without an accelerator request is '
             'unbound, before the request of a deleted server is deleted, and '
             'before a difference is reported that may be a bind or unbind in '
             'progress.'),
    cfg.StrOpt(
        'simulate',
        help='Simulated host to use instead of real GPUs: the name of one '
             'that comes with the library, such as dgx-a100-80, or a YAML '
             'file. For trials and tests.'),
    cfg.StrOpt(
        'simulate_state',
        help='File with the state of the simulated host, so that several '
             'processes share it. If unset, each process has its own.'),
]

POLICY_OPTS = [
    cfg.ListOpt(
        'match_address', default=[],
        help='PCI addresses of the GPUs that the policy matches, such as '
             '0000:3b:00.0.'),
    cfg.ListOpt(
        'match_uuid', default=[],
        help='UUIDs of the GPUs that the policy matches, such as GPU-4f2c...'),
    cfg.ListOpt(
        'match_model', default=[],
        help='Glob patterns of the model names that the policy matches, as '
             'NVML gives them (*A100*), or of four-digit PCI device ids '
             '(20b?).'),
    cfg.ListOpt(
        'match_numa_node',
        default=[], item_type=cfg.types.Integer(min=0),
        help='NUMA nodes of the GPUs that the policy matches.'),
    cfg.StrOpt(
        'mode',
        choices=[
            (policy.Mode.PASSTHROUGH.value,
             'the whole GPU to one server, resource class PGPU'),
            (policy.Mode.VGPU.value,
             'time-sliced vGPUs of the types in vgpu_types'),
            (policy.Mode.MIG.value,
             'MIG-backed vGPUs; each GPU instance is created at bind'),
            (policy.Mode.NVLINK.value,
             'groups of whole GPUs that NVLink connects, each to one server'),
            (policy.Mode.AUTO.value,
             'several of these, which roles names: an idle GPU is offered in '
             'all of them, and the first server decides'),
            (policy.Mode.OFF.value, 'not offered')],
        help='How the GPUs of this policy are offered. Required.'),
    cfg.ListOpt(
        'roles', default=[], item_type=cfg.types.String(choices=ROLES),
        help='Mode auto: two or more of passthrough, mig and vgpu. An idle '
             'GPU is offered in all of them at once. The first server that '
             'gets a part of it decides its role; all else is reserved in '
             'Placement until the GPU is idle again. Options of mode mig '
             'and mode vgpu apply in their role; vgpu_types then names the '
             'types of both. With passthrough, an idle GPU is kept bound to '
             'vfio-pci, and the first bind of a vGPU changes its driver and '
             'mode, for which bind_timeout must be long enough.'),
    cfg.ListOpt(
        'profiles', default=[],
        help='Mode mig: GPU instance profiles to offer, as nvidia-smi mig '
             '-lgip names them (1g.10gb, 3g.40gb). If empty, the profiles of '
             'vgpu_types are offered, or without vgpu_types every profile '
             'that can back a vGPU.'),
    cfg.ListOpt(
        'vgpu_types', default=[],
        help='Mode vgpu: vGPU types to offer, by name (T4-2B) or mdev type '
             '(nvidia-231). Mode mig: MIG-backed vGPU types. A type that '
             'fills its GPU instance backs the profile. A type that shares '
             'its GPU instance with others (DC-1-8Q) is offered by its own '
             'name.'),
    cfg.Opt(
        'max_instances', type=cfg.types.Dict(_count), default={},
        help='vGPU types with the highest number of each on one GPU, such as '
             'A40-4Q:6. Required for a type only if neither NVML nor sysfs '
             'says how many fit.'),
    cfg.Opt(
        'fixed_vgpus', type=cfg.types.Dict(_count), default={},
        help='For kernels without mdev (vendor VFIO): vGPU types with the '
             'number of each to create on each GPU, such as L40S-12Q:4, '
             'instead of vGPUs that are created at bind. The agent creates '
             'them at its start and again after a reboot, on the same virtual '
             'functions. Nova assigns them to servers; it supports one type '
             'on each GPU. "cyborg-gpu nova config" writes the lines that '
             'nova.conf needs.'),
    cfg.BoolOpt(
        'mixed_sizes', default=False,
        help='Mode vgpu: whether one GPU may have vGPUs of several '
             'framebuffer sizes at the same time (heterogeneous mode). Fewer '
             'vGPUs of some sizes fit then.'),
    cfg.StrOpt(
        'vgpu_scheduler',
        choices=[
            (model.SchedulerPolicy.BEST_EFFORT.value,
             'vGPUs that have work share the time'),
            (model.SchedulerPolicy.EQUAL_SHARE.value,
             'each running vGPU gets an equal share'),
            (model.SchedulerPolicy.FIXED_SHARE.value,
             'each vGPU gets the share that it would have on a full GPU')],
        help='Mode vgpu: scheduler by which vGPUs share the GPU. Mode mig: '
             'scheduler of each GPU instance that several vGPUs share, set '
             'when the instance is created; other instances have none. If '
             'unset, the scheduler is not changed. mixed_sizes excludes '
             'fixed-share.'),
    cfg.IntOpt(
        'vgpu_time_slice_us', min=1,
        help='Time slice of vgpu_scheduler, in microseconds. If unset, '
             "NVIDIA's driver chooses it, and drivers from 595 on always do."),
    cfg.BoolOpt(
        'nvlink_not_isolated', default=False,
        help='Mode passthrough: whether to offer GPUs on NVSwitches although '
             'FABRIC_MODE is 0. Then the NVLinks of all GPUs are one fabric, '
             'and a server is not isolated from the GPUs of other servers.'),
    cfg.ListOpt(
        'nvlink_sizes', default=[],
        item_type=cfg.types.Integer(min=1, max=16),
        help='Mode nvlink: sizes of the groups of GPUs to offer, such as 2,4. '
             'If empty, the groups of every size that the NVSwitches or the '
             'bridges of the board connect are offered: 1, 2, 4 and 8 on a '
             'board with eight GPUs.'),
    cfg.StrOpt(
        'isolation', default='none',
        choices=[
            ('none', 'servers of all projects share a GPU'),
            ('project', 'a GPU with servers of one project gets no server '
                        'of another one')],
        help='Modes vgpu and mig: who may share a GPU. The agent asks '
             'Placement at each bind whose servers are on the GPU, and '
             'refuses the bind if they belong to several projects, or if this '
             'is not known. GpuFilter in nova-scheduler keeps servers away '
             'that would be refused. The option has no effect on servers that '
             'already have the GPU. It excludes fixed_vgpus, which Nova '
             'assigns.'),
]


def gpu_group():
    """The option group ``[gpu]``.

    A new one each time, because oslo.config keeps values in the group. All
    sets of options that it is registered with would share them.
    """
    return cfg.OptGroup(
        'gpu', title='NVIDIA GPUs of this host',
        help='What cyborg_gpu_driver discovers and offers on this host.')


def policy_group(name):
    """The option group of the policy ``name``."""
    return cfg.OptGroup(
        f'gpu_policy:{name}', title=f'GPU policy {name}',
        help='A policy matches a GPU if every match_* option that is set '
             'matches it. A policy without match_* options matches every GPU.')


def register_opts(conf):
    """Register ``[gpu]``, unless it is registered."""
    group = gpu_group()
    conf.register_group(group)
    conf.register_opts(GPU_OPTS, group=group)


def has_cloud_user(conf: cfg.ConfigOpts) -> bool:
    """Whether ``[gpu_cloud]`` names a user."""
    return bool(conf[CLOUD].auth_type or conf[CLOUD].auth_section)


def state_path(conf: cfg.ConfigOpts) -> str:
    """Directory of the records and locks.

    A simulated host without a ``state_path`` of its own has a directory
    below the default one, so that it never changes the records of the real
    host.
    """
    path = conf.gpu.state_path
    where = conf.get_location('state_path', 'gpu')
    if conf.gpu.simulate and where is not None and (
            where.location is cfg.Locations.opt_default):
        return os.path.join(path, 'simulated')
    return path


def privileged_timeout(conf: cfg.ConfigOpts) -> float:
    """Seconds after which the privileged process counts as stuck.

    The process may have to wait for access to NVML before it calls NVML.
    """
    return ACCESS_SECONDS + conf.gpu.nvml_timeout + _ANSWER_SECONDS


def rpc_timeout(conf: cfg.ConfigOpts) -> float:
    """Seconds that Cyborg's services wait for each other.

    :param conf: of the agent, where ``rpc_response_timeout`` is registered
        by oslo.messaging; of a command, where it is not.
    """
    try:
        return float(conf.rpc_response_timeout)
    except cfg.NoSuchOptError:
        return _RPC_SECONDS


def register_policy(conf, name):
    """Register one policy's group and return its values."""
    group = policy_group(name)
    conf.register_group(group)
    conf.register_opts(POLICY_OPTS, group=group)
    return conf[group.name]
