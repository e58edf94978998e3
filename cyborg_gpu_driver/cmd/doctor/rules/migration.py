# SPDX-License-Identifier: Apache-2.0

"""Whether servers can be live-migrated between this host and others."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.cmd.doctor import facts as facts_module
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.host.snapshot import domain
from cyborg_gpu_driver.nova import handles
from cyborg_gpu_driver.partition import fixed

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

# The facts about another host: a JSON document that "doctor --peer-facts"
# writes there and "doctor --peer FILE" reads here.

Document = dict[str, Any]
VERSION = 1
_MOST_GPUS = 64
_LINE = schema.matching('[ -~]{1,255}', 'a line of text')
_TYPE = schema.matching(r'[A-Za-z0-9.+_-]{1,64}', 'a vGPU type', 'L40S-12Q')
_ADDRESS = schema.matching(
    r'[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]', 'a PCI address',
    '0000:16:00.0')
_SCHEMA = schema.mapping({
    'version': {'const': VERSION},
    'host': schema.matching(r'[A-Za-z0-9._-]{1,255}', 'a host name', 'gpu1'),
    'driver': schema.nullable(schema.matching(
        r'[0-9]{1,8}(?:\.[0-9]{1,8}){1,3}', 'a driver version',
        '580.65.06')),
    # The GPUs whose vGPUs Nova assigns; null means that a fact is unknown.
    'gpus': schema.listing(schema.mapping({
        'address': _ADDRESS,
        # The name from nvmlDeviceGetName.
        'model': schema.nullable(_LINE),
        # The types of its fixed vGPUs, each type once.
        'types': schema.listing(_TYPE, least=1, most=_MOST_GPUS),
        'mig': schema.TRUTH,
        # Null if the GPU has no such mode.
        'mixed_sizes': schema.nullable(schema.TRUTH),
        # This and the rest are those of domain.Migration.
        'ecc': schema.nullable(schema.TRUTH),
        'supported': schema.nullable(schema.TRUTH),
        'metadata': schema.nullable(_LINE),
    }), most=_MOST_GPUS)})


def parse(text: str, source: str) -> Document:
    """Read a document that ``--peer-facts`` wrote into the file ``source``.
    """
    place = schema.Place(source)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise place.error(
            str(error), 'expected what "cyborg-gpu doctor --peer-facts" '
            'writes on the other host') from error
    schema.check(content, _SCHEMA, place)
    return content


_ASK = ("Run the command as root on both hosts, with NVIDIA's vGPU host "
        'driver loaded')


def describe(facts: facts_module.Facts, name: str) -> Document:
    """Return the facts about a compute node that another host needs."""
    found = []
    for gpu, governing in facts.governed():
        if not fixed.is_left(gpu, governing):
            continue
        try:
            assigned = handles.assigned(gpu, governing, facts.remembered)
        except exception.InvalidConfiguration:
            continue  # Another check reports this.
        types = sorted({item.type_name for item in assigned})
        said = facts.migrations.get(gpu.address, domain.Migration())
        if types:
            found.append({
                'address': str(gpu.address), 'model': gpu.model,
                'types': types, 'mig': bool(gpu.mig and gpu.mig.enabled),
                'mixed_sizes': gpu.mixed_sizes, 'ecc': said.ecc,
                'supported': said.supported, 'metadata': said.metadata})
    return {'version': VERSION, 'host': name,
            'driver': facts.host.driver_version, 'gpus': found}


def between_hosts(facts: facts_module.Facts, peers: Iterable[Document]
                  ) -> Iterator[finding.Finding]:
    """Whether Nova can live-migrate servers between this host and peers."""
    here = describe(facts, 'here')
    for peer in peers if here['gpus'] else ():
        for item in (*_driver(here['driver'], peer['driver']),
                     *_types(here, peer), *_pairs(here, peer)):
            yield dataclasses.replace(item, subject=peer['host'])


def _driver(here: str | None, there: str | None
            ) -> Iterator[finding.Finding]:
    if here is None or there is None:
        yield finding.unknown(
            None, f'driver version: {here or "unknown"} here, '
            f'{there or "unknown"} there', _ASK)
    elif here.partition('.')[0] != there.partition('.')[0]:
        yield finding.error(
            None, f'driver {here} here, {there} there: not of the same branch',
            'Install the same version of the vGPU host driver on both hosts')
    elif here != there:
        yield finding.warning(
            None, f'driver {here} here, {there} there: of the same branch, '
            'but not equal', 'Install the same version on both hosts: live '
            'migration on Red Hat Enterprise Linux needs it')


def _types(here: Document, peer: Document) -> Iterator[finding.Finding]:
    """Yield a finding if only one host has some vGPU types."""
    ours, theirs = _by_type(here), _by_type(peer)
    missing = ', '.join(sorted(ours.keys() ^ theirs.keys()))
    if missing:
        yield finding.error(
            None, f'vGPU types {", ".join(sorted(ours))} here, '
            f'{", ".join(sorted(theirs)) or "none"} there: no migration of '
            f'{missing}', f'Set fixed_vgpus so that both hosts have {missing}')


def _by_type(peer: Document) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = collections.defaultdict(list)
    for gpu in peer['gpus']:
        for name in gpu['types']:
            found[name].append(gpu)
    return found


def _pairs(here: Document, peer: Document) -> Iterator[finding.Finding]:
    """Yield the differences between GPUs that Nova may migrate between.

    Each difference is reported once, with all GPUs that have it.
    """
    ours, theirs = _by_type(here), _by_type(peer)
    pairs = {(one['address'], other['address']): (one, other)
             for name in ours for one in ours[name]
             for other in theirs.get(name, ())}
    for what, (value, bad, make, advice) in _FITS.items():
        found: dict[tuple[str, str], list[tuple[str, str]]] = (
            collections.defaultdict(list))
        for addresses, (one, other) in pairs.items():
            values = value(one, other), value(other, one)
            if bad in values if bad else values[0] != values[1]:
                found[values].append(addresses)
        for values, named in found.items():
            mine, its = (', '.join(sorted(set(side)))
                         for side in zip(*named, strict=True))
            yield make(None, f'{what}: {values[0]} here ({mine}), '
                       f'{values[1]} there ({its})', advice)


def _support(gpu: Document, _other: Document) -> str:
    return {True: 'supported', False: 'not supported',
            None: 'unknown'}[gpu['supported']]


def _answers(gpu: Document, _other: Document) -> str:
    return ('incomplete' if None in (gpu['model'], gpu['supported'],
                                     gpu['metadata']) else 'complete')


def _ecc(gpu: Document, _other: Document) -> str:
    """Return the state of ECC, which is also None for a board without ECC."""
    return {True: 'on', False: 'off', None: 'no ECC'}[gpu['ecc']]


def _mode(gpu: Document, _other: Document) -> str:
    if gpu['mig']:
        return 'MIG'
    return 'mixed-size' if gpu['mixed_sizes'] else 'equal-size'


def _board(gpu: Document, other: Document) -> str:
    """Return the board: with its metadata if both have it, else by its name.

    The metadata includes ECC. If ECC differs, :func:`_ecc` reports this, and
    the model names are compared.
    """
    if (gpu['metadata'] and other['metadata']
            and gpu['ecc'] == other['ecc']):
        return '' if gpu['metadata'] == other['metadata'] else (
            f'{gpu["model"] or "unknown"}, metadata {gpu["metadata"]}')
    return gpu['model'] if gpu['model'] and other['model'] else ''


_FITS: dict[str, tuple[
    Callable[[Document, Document], str], str,
    Callable[[object, str, str], finding.Finding], str]] = {
    'live migration': (
        _support, 'not supported', finding.error,
        'Use GPUs and a vGPU host driver that support it on both hosts, and '
        'do not set RmEnableKvmVgpuMigration to 0'),
    'answers of NVML': (_answers, 'incomplete', finding.unknown, _ASK),
    'GPU': (
        _board, '', finding.error,
        'Use the same board on both hosts, or vGPU types of different names'),
    'mode': (
        _mode, '', finding.warning,
        'Use the same mode on both hosts (mixed_sizes in the policy, and MIG '
        'mode)'),
    'ECC': (
        _ecc, '', finding.error,
        'Turn ECC on, or off, on both GPUs: nvidia-smi -i ADDRESS -e 1, then '
        'reset the GPU'),
}
"""By what is compared: the value of a GPU beside another one, the value that
neither may have (empty if both must be equal), the finding and the advice."""
