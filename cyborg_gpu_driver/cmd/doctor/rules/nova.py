# SPDX-License-Identifier: Apache-2.0

"""Checks of nova.conf against the policies of this host's GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.doctor import facts as facts_module
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.nova import handles
from cyborg_gpu_driver.nova import pci_config
from cyborg_gpu_driver.partition import fixed

_WRITE = ('Replace the lines for this GPU in nova.conf with those that '
          '"cyborg-gpu nova config" writes')


def pci_devices(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether Nova assigns the functions left to it, and no others."""
    nova_has = []
    for gpu, governing in facts.governed():
        if not fixed.is_left(gpu, governing):
            yield from _ours(facts, gpu)
            continue
        try:
            nova_has.append((gpu, handles.assigned(gpu, governing,
                                                   facts.remembered)))
        except exception.InvalidConfiguration as error:
            yield finding.error(
                gpu.address, str(error),
                'Set fixed_vgpus to vGPUs that fit on the GPU')
    yield from _left(facts, nova_has)


def _left(facts, nova_has):
    """Check the GPUs with fixed vGPUs, which Nova assigns itself."""
    in_placement = facts.nova.assigned.report_in_placement
    problem = pci_config.refusal(
        [item for _, assigned in nova_has for item in assigned],
        in_placement)
    if problem:
        yield finding.error(
            None, problem,
            'Change fixed_vgpus or nova.conf as the details say')
        return
    if facts.nova.assigned.post_copy and any(
            item.live_migratable for item in facts.nova.assigned.device_spec):
        yield finding.error(
            None, f'[libvirt] {pci_config.POST_COPY} is true, and a '
            '[pci] device_spec says live_migratable: QEMU refuses post-copy '
            'with a vGPU, so a live migration may fail while it runs',
            f'Set [libvirt] {pci_config.POST_COPY} = False on every compute '
            'host')
    for gpu, assigned in nova_has:
        for item in assigned:
            yield from _assigned(facts, item, in_placement)
        yield from _strays(facts, gpu, {item.function for item in assigned})


def _assigned(facts, item, in_placement):
    """Yield the error in the entry for one fixed vGPU, if any."""
    function = pci_config.Function(
        item.function, item.vendor_id, item.product_id, item.gpu)
    entry = _entry(facts, function)
    if entry is None:
        yield finding.error(
            item.function, f'it has {item.type_name}, but no [pci] '
            'device_spec matches it, so Nova never assigns it', _WRITE)
        return
    wanted = item.resource_class
    given = str(entry.tags.get('resource_class', 'none')).upper()
    if entry.managed:
        yield finding.error(
            item.function, 'its [pci] device_spec has no "managed": "no", so '
            "libvirt would unbind it from NVIDIA's driver", _WRITE)
    elif entry.live_migratable and facts.migrations.get(item.gpu) is False:
        yield finding.error(
            item.function, 'its [pci] device_spec says live_migratable, but '
            'NVML says that the GPU does not support it', _WRITE)
    elif in_placement and given not in (wanted,
                                        wanted.removeprefix('CUSTOM_')):
        yield finding.error(
            item.function, 'its [pci] device_spec sets resource class '
            f'{given} instead of {wanted}', _WRITE)


def _strays(facts, gpu, assigned):
    """Return a failure for each function without a vGPU, and for the GPU
    itself, that Nova would assign.
    """
    return [finding.error(
        function.address, 'a [pci] device_spec matches it, but it has no '
        f'vGPU: {entry.text}', _WRITE)
        for function in _functions(gpu) if function.address not in assigned
        if (entry := _entry(facts, function))]


def _ours(facts, gpu):
    """Check that Nova does not assign a GPU that Cyborg assigns."""
    for function in _functions(gpu):
        entry = _entry(facts, function)
        if entry:
            yield finding.error(
                gpu.address, 'both Cyborg and Nova assign it: [pci] '
                f'device_spec matches {function.address}: {entry.text}',
                'Restrict that device_spec, or add the GPU to [gpu] '
                'ignored_devices')
            return


def _functions(gpu):
    yield pci_config.Function(gpu.address, gpu.vendor_id, gpu.device_id)
    for function in gpu.vfs:
        yield pci_config.Function(function.address, gpu.vendor_id,
                                  gpu.device_id, gpu.address)


def _entry(facts, function):
    """Return the first entry that matches, which is the one Nova uses."""
    return next((entry for entry in facts.nova.assigned.device_spec
                 if entry.matches(function)), None)


def mdev_types(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether Nova creates mdevs of its own beside Cyborg's."""
    types = facts.nova.assigned.enabled_mdev_types
    if types and any(True for _ in facts.with_vgpus()):
        yield finding.error(
            None, f'Nova creates mdevs of {", ".join(types)} itself '
            '([devices] enabled_mdev_types), in addition to Cyborg: servers '
            'fail to start', 'Remove enabled_mdev_types from nova.conf, and '
            'name the types in vgpu_types of a policy')


def release(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether this Nova supports attach handles of type MDEV."""
    if all(fixed.is_left(gpu, governing)
           for gpu, governing in facts.with_vgpus()):
        return
    if facts.machine.mdev_problem:
        yield finding.error(
            None, facts.machine.mdev_problem,
            'Upgrade Nova to 34.0.0 (2026.2) or later, or choose mode '
            'passthrough')
    elif not facts.machine.nova:
        yield finding.unknown(
            None, 'Nova is not installed in the environment of this '
            'command',
            'Check that nova-compute on this host is 34.0.0 (2026.2) or '
            'later: with earlier releases, servers start without their vGPUs '
            'and MIG slices')


def _binds(facts: facts_module.Facts) -> bool:
    """Whether Cyborg assigns a GPU of this host, or a part of one."""
    return any(not fixed.is_left(gpu, governing)
               for gpu, governing in facts.governed())


def service_token(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether Nova sends Cyborg a service token to identify itself."""
    if not _binds(facts):
        return
    if not facts.nova.sends_service_token:
        yield finding.error(
            None, 'Nova sends no service token: cyborg-api answers '
            'every bind with 403 (from 14.1.0, 15.0.1 and 16.0.1 on)',
            'Set [service_user] '
            'send_service_user_token = true in nova.conf of this host, of '
            'nova-conductor and of nova-api')
    elif not facts.nova.has_service_user:
        yield finding.error(
            None, 'Nova has no user to get a service token for',
            'Set auth_type and the options that it needs in [service_user] of '
            'nova.conf')


def guests(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether Nova starts servers by itself, without their accelerators."""
    if not _binds(facts) or not facts.nova.resumes_guests:
        return
    seen = facts.machine.running
    if not seen or set(seen.nova_commands) != {services.OURS}:
        yield finding.error(
            None, 'resume_guests_state_on_host_boot is true: Nova '
            'starts servers without their GPUs when the host boots',
            f'Start nova-compute as {services.OURS}; or set the option to '
            'false in nova.conf, and hard reboot these servers')


def quotas(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether Nova counts the GPUs of device profiles against quotas."""
    if not facts.nova.unified_limits:
        return
    if facts.machine.quota_problem:
        yield finding.warning(
            None, facts.machine.quota_problem,
            'Upgrade Nova, or control who may use GPUs by access to flavors')
    elif not facts.machine.nova:
        yield finding.unknown(
            None, 'Nova is not installed in the environment of this '
            'command',
            'Check that nova-api is 34.0.0 (2026.2) or later; older releases '
            'do not count the GPUs of device profiles against quotas')
