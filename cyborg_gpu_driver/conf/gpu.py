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

"""The options of ``[gpu]`` and of each ``[gpu_policy:NAME]``."""

from __future__ import annotations

import os

from oslo_config import cfg

from cyborg_gpu_driver.host.snapshot import drivers
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy

_BIND_SECONDS = 30.0
"""Half of the default of rpc_response_timeout."""
_ANSWER_SECONDS = 10
"""For an operation of the privileged process that NVML does not delay."""

GPU_OPTS = [
    cfg.ListOpt(
        'policies', default=[], mutable=True,
        help='Names of the [gpu_policy:NAME] groups, in order: the first '
             'that matches a GPU governs it, and a GPU that none matches is '
             'not offered. Empty: a GPU in MIG mode with virtual functions '
             'is offered by its MIG profiles, every other as a whole.'),
    cfg.ListOpt(
        'ignored_devices', default=[], mutable=True,
        help='PCI addresses or UUIDs of GPUs that are neither reported nor '
             'touched.'),
    cfg.StrOpt(
        'sysfs_root', default='/sys',
        help='Where sysfs is mounted.'),
    cfg.StrOpt(
        'state_path', default='/var/lib/cyborg/gpu',
        help='Directory for the journal, the record of what was reported '
             'and the locks. It must survive a reboot and belong to the '
             'user that runs cyborg-agent.'),
    cfg.BoolOpt(
        'prepare', default=True, mutable=True,
        help='Make GPUs ready for what their policy says when the agent '
             'starts and whenever they are idle: MIG mode, virtual '
             'functions, mixed-size mode, vGPU scheduler, fixed vGPUs, and '
             'vfio-pci for a GPU that is offered whole. False leaves all '
             'that to the operator. Without policies only vfio-pci is '
             'bound.'),
    cfg.StrOpt(
        'passthrough_driver', default=drivers.VFIO_PCI, mutable=True,
        choices=[
            (drivers.VFIO_PCI,
             'a GPU is bound to vfio-pci before it is offered'),
            (drivers.NVIDIA,
             'a GPU that is bound to nvidia is offered as it is, and '
             'libvirt binds it to vfio-pci when a server starts')],
        help='Which kernel driver an idle GPU has while it is offered whole. '
             'A GPU that the operator bound to vfio-pci is offered in '
             'either case. Choose nvidia only where no monitor (DCGM, '
             'nvidia-persistenced) has GPUs open: the nvidia driver '
             'does not let go of a GPU that a process has open, and the '
             'start of the server then hangs.'),
    cfg.BoolOpt(
        'nova_vfio_handles', default=False, mutable=True,
        help='Whether nova-compute on this host is started as '
             'cyborg-gpu-nova-compute. vGPUs on kernels without mdev '
             '(vendor VFIO) are then made when Nova binds them; otherwise '
             "fixed_vgpus are made at start and left to Nova's own PCI "
             'code.'),
    cfg.BoolOpt(
        'clean_whole_gpus', default=True, mutable=True,
        help='Reset a GPU that is offered as a whole after each server that '
             'had it, and offer it again only once it was reset and found '
             'clean. False offers it again at once, as it was left; needed '
             'for a GPU that the kernel cannot reset.'),
    cfg.BoolOpt(
        'health_events', default=True, mutable=True,
        help='Listen to the errors that NVML tells of (XIDs), so that '
             'nothing is offered on a GPU from the moment that it is sick '
             'on. False leaves health to what each report finds.'),
    cfg.IntOpt(
        'health_clean_checks', default=5, min=1, mutable=True,
        help='How many reports in a row must find nothing wrong with a GPU '
             'before it counts as well again.'),
    cfg.ListOpt(
        'health_ignored_xids', default=[], mutable=True,
        item_type=cfg.types.Integer(min=1),
        help='XIDs that never make a GPU sick, beside those of applications '
             "and those that NVIDIA's catalogue ignores."),
    cfg.IntOpt(
        'nvml_timeout', default=30, min=1,
        help='Seconds that NVML may take to read or change one GPU. A GPU '
             'that takes longer counts as not answering: nothing new is put '
             'there before the call has returned, and the other GPUs go on. '
             'A change of the MIG mode may take four times as long. Less '
             'than [DEFAULT] rpc_response_timeout, for which Cyborg waits.'),
    cfg.IntOpt(
        'bind_timeout', min=1, mutable=True,
        help='Seconds that a bind may take from its arrival. One that takes '
             'longer, because a command holds the GPU or NVML is slow, is '
             'refused or rolled back. Less than [DEFAULT] '
             'rpc_response_timeout of cyborg-conductor, which fails the '
             'request then without telling the agent. Unset is half of what '
             'rpc_response_timeout is in the configuration of the agent.'),
    cfg.IntOpt(
        'access_timeout', default=60, min=1,
        help='Seconds to wait until all processes of this library on this '
             'host have closed NVML, before a GPU is reset, unbound or '
             'changes its MIG mode, and how long those wait in turn until '
             'they may open it again. Longer refuses the operation.'),
    cfg.IntOpt(
        'driver_timeout', default=60, min=1,
        help='Seconds that a kernel driver may take to let go of a GPU, or '
             'to take one. After that the operation is given up; what the '
             'kernel has begun goes on.'),
    cfg.StrOpt(
        'nvidia_smi', default='nvidia-smi',
        help='nvidia-smi, which resets a GPU. Where there is none, the GPU '
             'is unbound, reset and bound again; not on NVSwitches, where '
             'it is needed.'),
    cfg.StrOpt(
        'sriov_manage', default='/usr/lib/nvidia/sriov-manage',
        help="NVIDIA's script that makes virtual functions."),
    cfg.StrOpt(
        'mdevctl', default='mdevctl',
        help='mdevctl, which is asked to forget a mediated device that is '
             'removed. Nothing is asked where there is none.'),
    cfg.StrOpt(
        'os_cloud',
        help='Cloud of clouds.yaml, with an administrator, whose accelerator '
             'requests are compared with what is bound on this host. Unset: '
             'they are not asked for, and nothing is removed for the lack '
             'of one. It also tells which devices are disabled; unset, '
             'Cyborg is asked for them as the user of [placement]. With the '
             'role service too, requests of servers that are gone are '
             'deleted.'),
    cfg.IntOpt(
        'orphan_grace', default=300, min=0, mutable=True,
        help='Seconds that a bound handle has to be without an accelerator '
             'request before what it has is returned, a server has to be '
             'gone before its request is deleted, and a difference that '
             'may be a bind or unbind under way has to last before it is '
             'named.'),
    cfg.StrOpt(
        'simulate',
        help='Drive a simulated host instead of real GPUs: the name of one '
             'that comes with the library, such as dgx-a100-80, or a YAML '
             'file. For trials and tests.'),
    cfg.StrOpt(
        'simulate_state',
        help='File that keeps the simulated host, so that several processes '
             'see one machine. Unset: each process has its own.'),
]

POLICY_OPTS = [
    cfg.ListOpt(
        'match_address', default=[], mutable=True,
        help='PCI addresses that the policy is for, such as 0000:3b:00.0.'),
    cfg.ListOpt(
        'match_uuid', default=[], mutable=True,
        help='GPU UUIDs that the policy is for, such as GPU-4f2c...'),
    cfg.ListOpt(
        'match_model', default=[], mutable=True,
        help='Globs of the model name as NVML gives it (*A100*), or of the '
             'four-digit PCI device id (20b?).'),
    cfg.ListOpt(
        'match_numa_node', mutable=True,
        default=[], item_type=cfg.types.Integer(min=0),
        help='NUMA nodes that the policy is for.'),
    cfg.StrOpt(
        'mode', mutable=True,
        choices=[
            (policy.Mode.PASSTHROUGH.value,
             'the whole GPU to one server, resource class PGPU'),
            (policy.Mode.VGPU.value,
             'time-sliced vGPUs of the types in vgpu_types'),
            (policy.Mode.MIG.value,
             'MIG-backed vGPUs, each instance cut when Nova binds it'),
            (policy.Mode.OFF.value, 'not offered')],
        help='What the GPUs of this policy are for. Required.'),
    cfg.ListOpt(
        'profiles', default=[], mutable=True,
        help='Mode mig: GPU instance profiles to offer, as nvidia-smi mig '
             '-lgip names them (1g.10gb, 3g.40gb). Empty: what vgpu_types '
             'names, or without that every profile that can back a vGPU.'),
    cfg.ListOpt(
        'vgpu_types', default=[], mutable=True,
        help='Mode vgpu: vGPU types to offer, by name (T4-2B) or mdev type '
             '(nvidia-231). Mode mig: MIG-backed types; one that fills its '
             'GPU instance backs the profile, one of which an instance '
             'holds several (DC-1-8Q) is offered by its own name.'),
    cfg.DictOpt(
        'max_instances', default={}, mutable=True,
        help='vGPU types and how many of each at most on one GPU, such as '
             'A40-4Q:6. Needed for a type only where neither NVML nor sysfs '
             'says how many fit.'),
    cfg.DictOpt(
        'fixed_vgpus', default={}, mutable=True,
        help='Kernels without mdev (vendor VFIO), unless nova_vfio_handles: '
             'vGPU types and how many of each to make on each GPU, such as '
             'L40S-12Q:4. They are made when the agent starts and after a '
             'reboot, on the same virtual functions, and left to Nova, which '
             'takes one type a GPU; "cyborg-gpu nova config" writes what it '
             'needs.'),
    cfg.BoolOpt(
        'mixed_sizes', default=False, mutable=True,
        help='Mode vgpu: whether vGPUs of several framebuffer sizes may '
             'live side by side on one GPU (heterogeneous mode). Of some '
             'sizes fewer fit then.'),
    cfg.StrOpt(
        'vgpu_scheduler', mutable=True,
        choices=[item.value for item in model.SchedulerPolicy],
        help='Mode vgpu: how vGPUs share the GPU. Unset leaves it as it is. '
             'Mixed sizes exclude fixed-share.'),
    cfg.IntOpt(
        'vgpu_time_slice', min=1, mutable=True,
        help='Mode vgpu: time slice of vgpu_scheduler, in microseconds. '
             "Unset is the driver's own."),
]


def gpu_group():
    """The option group ``[gpu]``.

    A new one each time: oslo.config keeps values in it, which would be
    shared by every set of options that it is registered with.
    """
    return cfg.OptGroup(
        'gpu', title='NVIDIA GPUs of this host',
        help='What cyborg_gpu_driver discovers and offers on this host.')


def policy_group(name):
    """The option group of the policy ``name``."""
    return cfg.OptGroup(
        f'gpu_policy:{name}', title=f'GPU policy {name}',
        help='A GPU is governed by the policy if every match_* option that '
             'is set matches it; a policy without any matches every GPU.')


def register_opts(conf):
    """Register ``[gpu]``; does nothing where that is done."""
    group = gpu_group()
    conf.register_group(group)
    conf.register_opts(GPU_OPTS, group=group)


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

    It may have to wait for NVML before it can call it.
    """
    return float(conf.gpu.access_timeout + conf.gpu.nvml_timeout
                 + _ANSWER_SECONDS)


def default_bind_timeout(conf: cfg.ConfigOpts) -> float:
    """Seconds that a bind may take if ``[gpu] bind_timeout`` is unset.

    :param conf: of the agent, where ``rpc_response_timeout`` is registered
        by oslo.messaging; of a command, where it is not.
    """
    try:
        return conf.rpc_response_timeout / 2
    except cfg.NoSuchOptError:
        return _BIND_SECONDS


def register_policy(conf, name):
    """Register one policy's group and return its values."""
    group = policy_group(name)
    conf.register_group(group)
    conf.register_opts(POLICY_OPTS, group=group)
    return conf[group.name]
