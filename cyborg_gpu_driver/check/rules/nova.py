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

"""Checks of nova.conf, and of live migration between two hosts."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterator

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.check import facts as facts_module
from cyborg_gpu_driver.check import placement
from cyborg_gpu_driver.check.rules import result
from cyborg_gpu_driver.host.snapshot import domain
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import handles
from cyborg_gpu_driver.nova import pci_config

# Checks that servers can be live-migrated between this host and others.
#
# Nova migrates a server to any function of the same resource class that has
# ``live_migratable``. Nova does not know whether the two GPUs are compatible:
# if they are not, QEMU fails in the middle. These must be equal, by these
# sources:
#
# * the driver. "Currently, vGPU live migration fails if the vGPU driver
#   version differs on the source and destination hosts." (Red Hat Enterprise
#   Linux 10, Live migrating a virtual machine with an attached NVIDIA vGPU).
#   NVML too has a limit by the host's driver
#   (NVML_VGPU_COMPATIBILITY_LIMIT_HOST_DRIVER in nvml.h), but does not say
#   which versions it applies to. Here, a driver of another branch is a
#   failure, and another driver of the same branch is a warning.
# * the GPU. "Live Migration is not supported between 80 GB PCIe and 94 GB NVL
#   variants" (NVIDIA AI Enterprise, Live Migration). The driver itself
#   compares the string of nvmlDeviceGetPgpuMetadataString
#   (:func:`cyborg_gpu_driver.host.nvml.vgpu.migration_metadata`), which
#   includes ECC and SR-IOV.
# * mixed-size mode. No source says that a vGPU can change between the modes.
#   NVML has separate placements for each mode (homogeneous, heterogeneous).

_NO_ANSWER = domain.Migration()
_ASK = ("Run the command as root on both hosts, with NVIDIA's vGPU host "
        'driver loaded')


def describe(facts: facts_module.Facts, name: str) -> placement.Peer:
    """Return the facts about this host that another host needs.

    :param name: the name of the compute node.
    """
    found = []
    for gpu, governing in facts.governed():
        if not handles.is_left(gpu, governing, facts.settings):
            continue
        try:
            assigned = handles.assigned(gpu, governing, facts.remembered)
        except exception.FixedVgpusRefused:
            continue  # Another check reports this.
        types = sorted({item.type_name for item in assigned})
        if types:
            found.append(_gpu(gpu, types, facts.migrations.get(
                gpu.address, _NO_ANSWER)))
    return placement.Peer(name, facts.host.driver_version, tuple(found))


def _gpu(gpu: model.Gpu, types: list[str], said: domain.Migration
         ) -> placement.Gpu:
    return placement.Gpu(
        str(gpu.address), gpu.model, tuple(types),
        bool(gpu.mig and gpu.mig.enabled), gpu.mixed_sizes,
        said.ecc, said.supported, said.metadata)


def between_hosts(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether Nova can live-migrate servers between this host and peers."""
    if not facts.peers:
        yield result.skipped(result.HOST, 'no other host was named (--peer)')
        return
    here = describe(facts, result.HOST)
    if not here.gpus:
        yield result.skipped(
            result.HOST, 'no GPU of this host has vGPUs that Nova assigns '
            'itself; Nova migrates only those')
        return
    for peer in facts.peers:
        found = [*_driver(here, peer), *_types(here, peer),
                 *_pairs(here, peer)]
        yield from found or [result.success(
            peer.host, 'driver, GPUs, vGPU types, modes and ECC fit those of '
            'this host')]


def _driver(here: placement.Peer, peer: placement.Peer
            ) -> Iterator[result.Finding]:
    if here.driver is None or peer.driver is None:
        yield result.skipped(
            peer.host, f'driver version: {here.driver or "unknown"} here, '
            f'{peer.driver or "unknown"} there', _ASK)
    elif here.driver != peer.driver:
        details = f'driver {here.driver} here, {peer.driver} there'
        if _branch(here.driver) != _branch(peer.driver):
            yield result.failure(
                peer.host, f'{details}: not of the same branch',
                'Install the same version of the vGPU host driver on both '
                'hosts')
        else:
            yield result.warning(
                peer.host, f'{details}: of the same branch, but not equal',
                'Install the same version on both hosts: live migration on '
                'Red Hat Enterprise Linux needs it')


def _branch(version: str) -> str:
    return version.partition('.')[0]


def _types(here: placement.Peer, peer: placement.Peer
           ) -> Iterator[result.Finding]:
    """Yield a finding if only one host has some vGPU types."""
    ours, theirs = _by_type(here), _by_type(peer)
    if ours.keys() == theirs.keys():
        return
    missing = sorted(ours.keys() ^ theirs.keys())
    yield result.failure(
        peer.host, f'vGPU types {", ".join(sorted(ours))} here, '
        f'{", ".join(sorted(theirs)) or "none"} there: no migration of '
        f'{", ".join(missing)}',
        f'Set fixed_vgpus so that both hosts have {", ".join(missing)}')


def _by_type(peer: placement.Peer) -> dict[str, list[placement.Gpu]]:
    found: dict[str, list[placement.Gpu]] = collections.defaultdict(list)
    for gpu in peer.gpus:
        for name in gpu.types:
            found[name].append(gpu)
    return found


_Fit = Callable[[placement.Gpu, placement.Gpu], tuple[str, str] | None]


def _pairs(here: placement.Peer, peer: placement.Peer
           ) -> Iterator[result.Finding]:
    """Yield the differences between GPUs that Nova may migrate between.

    Each difference is reported once, with all GPUs that have it.
    """
    ours, theirs = _by_type(here), _by_type(peer)
    pairs = {(one, other): None for name in ours for one in ours[name]
             for other in theirs.get(name, ())}
    for what, (differ, make, advice) in _FITS.items():
        found: dict[tuple[str, str], list[tuple[str, str]]] = (
            collections.defaultdict(list))
        for one, other in pairs:
            values = differ(one, other)
            if values:
                found[values].append((one.address, other.address))
        for (mine, other_value), addresses in found.items():
            yield make(
                peer.host, f'{what}: {mine} here ({_list(addresses, 0)}), '
                f'{other_value} there ({_list(addresses, 1)})', advice)


def _list(pairs: list[tuple[str, str]], side: int) -> str:
    return ', '.join(sorted({pair[side] for pair in pairs}))


def _support(one: placement.Gpu, other: placement.Gpu
             ) -> tuple[str, str] | None:
    """Compare the support; :func:`_answer` reports a GPU without answer."""
    names = {True: 'supported', False: 'not supported', None: 'unknown'}
    if False in (one.supported, other.supported):
        return names[one.supported], names[other.supported]
    return None


def _answer(one: placement.Gpu, other: placement.Gpu
            ) -> tuple[str, str] | None:
    values = _answered(one), _answered(other)
    return values if 'incomplete' in values else None


def _answered(gpu: placement.Gpu) -> str:
    return ('incomplete' if None in (gpu.model, gpu.supported, gpu.metadata)
            else 'complete')


def _ecc(one: placement.Gpu, other: placement.Gpu) -> tuple[str, str] | None:
    """Compare ECC, which is also None for a board without ECC."""
    names = {True: 'on', False: 'off', None: 'no ECC'}
    return (None if one.ecc == other.ecc
            else (names[one.ecc], names[other.ecc]))


def _mode(one: placement.Gpu, other: placement.Gpu) -> tuple[str, str] | None:
    values = _mode_of(one), _mode_of(other)
    return None if values[0] == values[1] else values


def _mode_of(gpu: placement.Gpu) -> str:
    if gpu.mig:
        return 'MIG'
    return 'mixed-size' if gpu.mixed_sizes else 'equal-size'


def _model(one: placement.Gpu, other: placement.Gpu) -> tuple[str, str] | None:
    """Compare the boards by metadata if both have it, else by model name.

    The metadata includes ECC. If ECC differs, :func:`_ecc` reports this, and
    the model names are compared.
    """
    if one.metadata and other.metadata and one.ecc == other.ecc:
        if one.metadata == other.metadata:
            return None
        return (f'{one.model or "unknown"}, metadata {one.metadata}',
                f'{other.model or "unknown"}, metadata {other.metadata}')
    if one.model == other.model or not one.model or not other.model:
        return None
    return one.model, other.model


_FITS: dict[str, tuple[_Fit, Callable[[object, str, str], result.Finding],
                       str]] = {
    'live migration': (
        _support, result.failure,
        'Use GPUs and a vGPU host driver that support it on both hosts, and '
        'do not set RmEnableKvmVgpuMigration to 0'),
    'answers of NVML': (_answer, result.skipped, _ASK),
    'GPU': (
        _model, result.failure,
        'Use the same board on both hosts, or vGPU types of different names'),
    'mode': (
        _mode, result.warning,
        'Use the same mode on both hosts (mixed_sizes in the policy, and MIG '
        'mode)'),
    'ECC': (
        _ecc, result.failure,
        'Turn ECC on, or off, on both GPUs: nvidia-smi -i ADDRESS -e 1, then '
        'reset the GPU'),
}


# Checks of nova.conf against the policies of this host's GPUs.

_WRITE = ('Replace the lines for this GPU in nova.conf with those that '
          '"cyborg-gpu nova config" writes')


def pci_devices(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether Nova assigns the functions left to it, and no others."""
    nova_has = []
    for gpu, governing in facts.governed():
        if not handles.is_left(gpu, governing, facts.settings):
            yield from _ours(facts, gpu)
            continue
        try:
            nova_has.append((gpu, handles.assigned(gpu, governing,
                                                   facts.remembered)))
        except exception.FixedVgpusRefused as error:
            yield result.failure(
                gpu.address, str(error),
                'Set fixed_vgpus to vGPUs that fit on the GPU')
    yield from _left(facts, nova_has)


def _left(facts, nova_has):
    """Check the GPUs whose virtual functions Nova assigns itself.

    :param nova_has: the GPUs with the fixed vGPUs of their functions.
    """
    in_placement = facts.nova.report_in_placement
    problem = pci_config.refusal(
        [item for _, assigned in nova_has for item in assigned],
        in_placement)
    if problem:
        yield result.failure(
            result.HOST, problem,
            'Change fixed_vgpus or nova.conf as the details say')
        return
    if facts.nova.post_copy and any(
            item.live_migratable for item in facts.nova.device_spec):
        yield result.failure(
            result.HOST, f'[libvirt] {pci_config.POST_COPY} is true, and a '
            '[pci] device_spec says live_migratable: QEMU refuses post-copy '
            'with a vGPU, so a live migration may fail while it runs',
            f'Set [libvirt] {pci_config.POST_COPY} = False on every compute '
            'host')
    for gpu, assigned in nova_has:
        found = [_assigned(facts, item, in_placement) for item in assigned]
        found += _strays(facts, gpu, {item.function for item in assigned})
        problems = [finding for finding in found if finding]
        yield from problems
        if assigned and not problems:
            yield result.success(
                gpu.address, f'Nova assigns its {len(assigned)} virtual '
                'function(s) with a fixed vGPU, and no others')


def _assigned(facts, item, in_placement):
    """Return the error in the entry for one fixed vGPU; None if correct."""
    function = pci_config.Function(
        item.function, item.vendor_id, item.product_id, item.gpu)
    entry = _entry(facts, function)
    if entry is None:
        return result.failure(
            item.function, f'{item.type_name}, but no [pci] device_spec '
            'matches it, so Nova never assigns it', _WRITE)
    if entry.managed:
        return result.failure(
            item.function, 'its [pci] device_spec has no "managed": "no", so '
            "libvirt would unbind it from NVIDIA's driver", _WRITE)
    if entry.live_migratable and _refuses_migration(facts, item.gpu):
        return result.failure(
            item.function, 'its [pci] device_spec says live_migratable, but '
            'NVML says that the GPU does not support it', _WRITE)
    wanted = item.resource_class
    given = str(entry.tags.get('resource_class', 'none')).upper()
    if in_placement and given not in (wanted,
                                      wanted.removeprefix('CUSTOM_')):
        return result.failure(
            item.function, 'its [pci] device_spec sets resource class '
            f'{given} instead of {wanted}', _WRITE)
    return None


def _refuses_migration(facts, gpu):
    said = facts.migrations.get(gpu)
    return said is not None and said.supported is False


def _strays(facts, gpu, assigned):
    """Return a failure for each function without a vGPU, and for the GPU
    itself, that Nova would assign.
    """
    return [result.failure(
        function.address, 'a [pci] device_spec matches it, but it has no '
        f'vGPU: {entry.text}', _WRITE)
        for function in _functions(gpu) if function.address not in assigned
        if (entry := _entry(facts, function))]


def _ours(facts, gpu):
    """Check that Nova does not assign a GPU that Cyborg assigns."""
    for function in _functions(gpu):
        entry = _entry(facts, function)
        if entry:
            yield result.failure(
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
    return next((entry for entry in facts.nova.device_spec
                 if entry.matches(function)), None)


def mdev_types(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether Nova creates mdevs of its own beside Cyborg's."""
    assert facts.nova is not None
    types = facts.nova.enabled_mdev_types
    if types and any(True for _ in facts.with_vgpus()):
        yield result.failure(
            result.HOST, f'Nova creates mdevs of {", ".join(types)} itself '
            '([devices] enabled_mdev_types), in addition to Cyborg: servers '
            'fail to start', 'Remove enabled_mdev_types from nova.conf, and '
            'name the types in vgpu_types of a policy')


def release(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether this Nova supports attach handles of type MDEV."""
    assert facts.machine is not None
    if all(handles.is_left(gpu, governing, facts.settings)
           for gpu, governing in facts.with_vgpus()):
        return
    if facts.machine.mdev_problem:
        yield result.failure(
            result.HOST, facts.machine.mdev_problem,
            'Upgrade Nova to 34.0.0 (2026.2) or later, or choose mode '
            'passthrough')
    elif facts.machine.nova:
        yield result.success(result.HOST, f'Nova {facts.machine.nova}')
    else:
        yield result.skipped(
            result.HOST, 'Nova is not installed in the environment of this '
            'command',
            'Check that nova-compute on this host is 34.0.0 (2026.2) or '
            'later: with earlier releases, servers start without their vGPUs '
            'and MIG slices')


def service_token(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether Nova sends Cyborg a service token to identify itself."""
    assert facts.nova_services is not None
    if not facts.nova_services.sends_service_token:
        yield result.failure(
            result.HOST, 'Nova sends no service token: cyborg-api answers '
            'every bind with 403 (from 14.1.0, 15.0.1 and 16.0.1 on)',
            'Set [service_user] '
            'send_service_user_token = true in nova.conf of this host, of '
            'nova-conductor and of nova-api')
    elif not facts.nova_services.has_service_user:
        yield result.failure(
            result.HOST, 'Nova has no user to get a service token for',
            'Set auth_type and the options that it needs in [service_user] of '
            'nova.conf')


def guests(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether Nova starts servers by itself, without their accelerators."""
    assert facts.machine is not None
    assert facts.nova_services is not None
    bound = any(not handles.is_left(gpu, governing, facts.settings)
                for gpu, governing in facts.governed())
    if not bound or not facts.nova_services.resumes_guests:
        return
    seen = facts.machine.running
    if seen and set(seen.nova_commands) == {placement.OURS}:
        yield result.success(
            result.HOST, f'{placement.OURS} attaches the GPUs of servers '
            'when the host boots')
    else:
        yield result.failure(
            result.HOST, 'resume_guests_state_on_host_boot is true: Nova '
            'starts servers without their GPUs when the host boots',
            f'Start nova-compute as {placement.OURS}; or set the option to '
            'false in nova.conf, and hard reboot these servers')


def quotas(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether Nova counts the GPUs of device profiles against quotas."""
    assert facts.machine is not None
    assert facts.nova_services is not None
    if not facts.nova_services.unified_limits:
        return
    if facts.machine.quota_problem:
        yield result.warning(
            result.HOST, facts.machine.quota_problem,
            'Upgrade Nova, or control who may use GPUs by access to flavors')
    elif facts.machine.nova:
        yield result.success(
            result.HOST, f'Nova {facts.machine.nova} counts the GPUs of '
            'device profiles')
    else:
        yield result.skipped(
            result.HOST, 'Nova is not installed in the environment of this '
            'command',
            'Check that nova-api is 34.0.0 (2026.2) or later; older releases '
            'do not count the GPUs of device profiles against quotas')
