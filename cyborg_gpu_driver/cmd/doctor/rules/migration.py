# SPDX-License-Identifier: Apache-2.0

"""Whether servers can be live-migrated between this host and others."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.cmd.doctor import facts as facts_module
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.host.snapshot import domain
from cyborg_gpu_driver.host.snapshot import model
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
    'gpus': schema.listing(schema.mapping({
        'address': _ADDRESS,
        'model': schema.nullable(_LINE),
        'types': schema.listing(_TYPE, least=1, most=_MOST_GPUS),
        'mig': schema.TRUTH,
        'mixed_sizes': schema.nullable(schema.TRUTH),
        'ecc': schema.nullable(schema.TRUTH),
        'supported': schema.nullable(schema.TRUTH),
        'metadata': schema.nullable(_LINE),
    }), most=_MOST_GPUS)})


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU whose vGPUs Nova assigns; None means that a fact is unknown."""

    address: str
    model: str | None
    """The name from nvmlDeviceGetName."""
    types: tuple[str, ...]
    """The types of its fixed vGPUs, each type once."""
    mig: bool
    """Whether MIG mode is on."""
    mixed_sizes: bool | None
    """Whether mixed-size mode is on; None if the GPU has no such mode."""
    ecc: bool | None
    supported: bool | None
    """Whether NVML reports that its vGPUs can migrate."""
    metadata: str | None
    """As in :class:`cyborg_gpu_driver.host.snapshot.domain.Migration`.
    """


@dataclasses.dataclass(frozen=True)
class Peer:
    """A host that servers may migrate to or from."""

    host: str
    driver: str | None
    """Version of NVIDIA's driver."""
    gpus: tuple[Gpu, ...]

    def dump(self) -> str:
        """Return the JSON document."""
        return json.dumps({'version': VERSION, **dataclasses.asdict(self)},
                          indent=2) + '\n'


def parse(text: str, source: str) -> Peer:
    """Read a document that ``--peer-facts`` wrote.

    :param source: the name of its file, for error messages.
    :raises DocumentError: if it has another format.
    """
    place = schema.Place(source)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise place.error(
            str(error), 'expected what "cyborg-gpu doctor --peer-facts" '
            'writes on the other host') from error
    schema.check(content, _SCHEMA, place)
    return Peer(content['host'], content['driver'], tuple(
        Gpu(**{**gpu, 'types': tuple(gpu['types'])})
        for gpu in content['gpus']))


_NO_ANSWER = domain.Migration()
_ASK = ("Run the command as root on both hosts, with NVIDIA's vGPU host "
        'driver loaded')


def describe(facts: facts_module.Facts, name: str) -> Peer:
    """Return the facts about this host that another host needs.

    :param name: the name of the compute node.
    """
    found = []
    for gpu, governing in facts.governed():
        if not fixed.is_left(gpu, governing):
            continue
        try:
            assigned = handles.assigned(gpu, governing, facts.remembered)
        except exception.InvalidConfiguration:
            continue  # Another check reports this.
        types = sorted({item.type_name for item in assigned})
        if types:
            found.append(_gpu(gpu, types, facts.migrations.get(
                gpu.address, _NO_ANSWER)))
    return Peer(name, facts.host.driver_version, tuple(found))


def _gpu(gpu: model.Gpu, types: list[str], said: domain.Migration
         ) -> Gpu:
    return Gpu(
        str(gpu.address), gpu.model, tuple(types),
        bool(gpu.mig and gpu.mig.enabled), gpu.mixed_sizes,
        said.ecc, said.supported, said.metadata)


def between_hosts(facts: facts_module.Facts, peers: Iterable[Peer]
                  ) -> Iterator[finding.Finding]:
    """Whether Nova can live-migrate servers between this host and peers."""
    here = describe(facts, 'here')
    for peer in peers if here.gpus else ():
        for item in (*_driver(here, peer), *_types(here, peer),
                     *_pairs(here, peer)):
            yield dataclasses.replace(item, subject=peer.host)


def _driver(here: Peer, peer: Peer
            ) -> Iterator[finding.Finding]:
    if here.driver is None or peer.driver is None:
        yield finding.unknown(
            None, f'driver version: {here.driver or "unknown"} here, '
            f'{peer.driver or "unknown"} there', _ASK)
    elif here.driver != peer.driver:
        details = f'driver {here.driver} here, {peer.driver} there'
        if _branch(here.driver) != _branch(peer.driver):
            yield finding.error(
                None, f'{details}: not of the same branch',
                'Install the same version of the vGPU host driver on both '
                'hosts')
        else:
            yield finding.warning(
                None, f'{details}: of the same branch, but not equal',
                'Install the same version on both hosts: live migration on '
                'Red Hat Enterprise Linux needs it')


def _branch(version: str) -> str:
    return version.partition('.')[0]


def _types(here: Peer, peer: Peer
           ) -> Iterator[finding.Finding]:
    """Yield a finding if only one host has some vGPU types."""
    ours, theirs = _by_type(here), _by_type(peer)
    if ours.keys() == theirs.keys():
        return
    missing = sorted(ours.keys() ^ theirs.keys())
    yield finding.error(
        None, f'vGPU types {", ".join(sorted(ours))} here, '
        f'{", ".join(sorted(theirs)) or "none"} there: no migration of '
        f'{", ".join(missing)}',
        f'Set fixed_vgpus so that both hosts have {", ".join(missing)}')


def _by_type(peer: Peer) -> dict[str, list[Gpu]]:
    found: dict[str, list[Gpu]] = collections.defaultdict(list)
    for gpu in peer.gpus:
        for name in gpu.types:
            found[name].append(gpu)
    return found


_Fit = Callable[[Gpu, Gpu], tuple[str, str] | None]


def _pairs(here: Peer, peer: Peer
           ) -> Iterator[finding.Finding]:
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
                None, f'{what}: {mine} here ({_list(addresses, 0)}), '
                f'{other_value} there ({_list(addresses, 1)})', advice)


def _list(pairs: list[tuple[str, str]], side: int) -> str:
    return ', '.join(sorted({pair[side] for pair in pairs}))


def _support(one: Gpu, other: Gpu
             ) -> tuple[str, str] | None:
    """Compare the support; :func:`_answer` reports a GPU without answer."""
    names = {True: 'supported', False: 'not supported', None: 'unknown'}
    if False in (one.supported, other.supported):
        return names[one.supported], names[other.supported]
    return None


def _answer(one: Gpu, other: Gpu
            ) -> tuple[str, str] | None:
    values = _answered(one), _answered(other)
    return values if 'incomplete' in values else None


def _answered(gpu: Gpu) -> str:
    return ('incomplete' if None in (gpu.model, gpu.supported, gpu.metadata)
            else 'complete')


def _ecc(one: Gpu, other: Gpu) -> tuple[str, str] | None:
    """Compare ECC, which is also None for a board without ECC."""
    names = {True: 'on', False: 'off', None: 'no ECC'}
    return (None if one.ecc == other.ecc
            else (names[one.ecc], names[other.ecc]))


def _mode(one: Gpu, other: Gpu) -> tuple[str, str] | None:
    values = _mode_of(one), _mode_of(other)
    return None if values[0] == values[1] else values


def _mode_of(gpu: Gpu) -> str:
    if gpu.mig:
        return 'MIG'
    return 'mixed-size' if gpu.mixed_sizes else 'equal-size'


def _model(one: Gpu, other: Gpu) -> tuple[str, str] | None:
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


_FITS: dict[str, tuple[_Fit, Callable[[object, str, str], finding.Finding],
                       str]] = {
    'live migration': (
        _support, finding.error,
        'Use GPUs and a vGPU host driver that support it on both hosts, and '
        'do not set RmEnableKvmVgpuMigration to 0'),
    'answers of NVML': (_answer, finding.unknown, _ASK),
    'GPU': (
        _model, finding.error,
        'Use the same board on both hosts, or vGPU types of different names'),
    'mode': (
        _mode, finding.warning,
        'Use the same mode on both hosts (mixed_sizes in the policy, and MIG '
        'mode)'),
    'ECC': (
        _ecc, finding.error,
        'Turn ECC on, or off, on both GPUs: nvidia-smi -i ADDRESS -e 1, then '
        'reset the GPU'),
}


