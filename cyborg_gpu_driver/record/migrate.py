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

"""Migrate the files of earlier releases to the records of the GPUs.

Earlier releases had one file for each kind of data, for all GPUs of the
machine. Each file is read once, written into the records, and then renamed.
If a process dies meanwhile, the next process repeats the migration of the
files that are not renamed.
"""

from __future__ import annotations

import functools
import glob
import logging
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import health as health_record

LOG = logging.getLogger(__name__)

Parts = dict[model.PciAddress, dict[str, Any]]
"""Fields of :class:`~.gpu.GpuRecord`, by GPU."""

_JOURNAL = 'journal.json'
_DISABLED = cordon.Cordon(cordon.Source.CYBORG)


def is_pending(state_path: str) -> bool:
    """Whether there are files to migrate."""
    return any(True for _ in _files(state_path))


def read(state_path: str) -> Parts:
    """Read the parts of records that the files have.

    :raises JournalError: if a file cannot be read or is damaged.
    """
    found: Parts = {}
    for path, kind, parse in _files(state_path):
        _add(found, _parsed(path, kind, parse))
    return found


def run(state_path: str,
        take_over: Callable[[model.PciAddress, dict[str, Any]], None]
        ) -> None:
    """Migrate the files. The caller ensures that no other process does.

    :param take_over: writes parts of one record.
    :raises JournalError: if a file cannot be read, written or renamed. Then
        the migration has to be repeated.
    """
    found: Parts = {}
    kept = []
    lost = False
    for path, kind, parse in _files(state_path):
        try:
            _add(found, _parsed(path, kind, parse))
            kept.append((path, 'migrated'))
        except exception.JournalUnreadable:
            raise
        except exception.JournalError as error:
            LOG.error('%s. The file is kept beside the records of the GPUs, '
                      'but nothing in it is used.', error)
            is_journal = os.path.basename(path) == _JOURNAL
            lost = lost or is_journal
            kept.append((path, 'lost' if is_journal else 'unusable'))
    for parts in found.values() if lost else ():
        parts['claims_lost'] = True
    for address, parts in sorted(found.items()):
        take_over(address, parts)
    for path, suffix in kept:
        LOG.info('%(path)s is kept as %(kept)s; its content is now in the '
                 'records of the GPUs',
                 {'path': path, 'kept': durable.set_aside(path, suffix)})


def lost_claims(state_path: str) -> list[str]:
    """The damaged journal of an earlier release, if there was one.

    In that case the claims on GPUs without a record have to be rebuilt.
    """
    return glob.glob(
        glob.escape(os.path.join(state_path, _JOURNAL)) + '.lost-[0-9]')


def settle(state_path: str) -> None:
    """Note that the claims of all GPUs have been rebuilt.

    :raises JournalError: if a lost journal cannot be renamed.
    """
    for path in lost_claims(state_path):
        durable.set_aside(path, 'unusable')


def saved_layout(item: Mapping[str, Any]) -> gpu_record.SavedLayout:
    """Read the layout of one GPU from a checkpoint in version 1.

    :raises KeyError, TypeError, ValueError: if it is something else.
    """
    return codec.decode(gpu_record.SavedLayout, {
        'gpu': item['gpu'], 'device_id': item['device_id'],
        'vfs': item['vfs'], 'layout': _layout(item)})


def _files(state_path: str) -> Iterator[tuple[str, str, Callable]]:
    """Path, kind and parser of each existing file."""
    for name, kind, parse in _KINDS:
        pattern = glob.escape(state_path) + f'/{name}'
        for path in sorted(glob.glob(pattern)):
            yield path, kind, parse


def _parsed(path: str, kind: str, parse: Callable[[Any], Parts]) -> Parts:
    content = durable.read(path, kind, 1)
    try:
        return parse(content or [])
    except (KeyError, TypeError, ValueError, AttributeError,
            exception.InvalidValue) as error:
        raise exception.JournalError(
            path=path, reason=f'is damaged: {error!r}') from error


def _add(found: Parts, more: Parts) -> None:
    for address, parts in more.items():
        found.setdefault(address, {}).update(parts)


def _claims(content: Any) -> Parts:
    found: Parts = {}
    for item in content:
        claim = codec.decode(gpu_record.Claim, item)
        parts = found.setdefault(claim.gpu, {'claims': ()})
        parts['claims'] += (claim,)
    return found


def _fixed(content: Any) -> Parts:
    return {model.PciAddress.parse(item['gpu']): {'fixed': codec.decode(
        gpu_record.FixedVgpus, {
            'types': item['types'],
            'instances': list(map(_instance, item['instances']))})}
        for item in content}


def _saved_layouts(content: Any) -> Parts:
    return {saved.gpu: {'layout': saved}
            for saved in map(saved_layout, content)}


def _change(content: Any) -> Parts:
    change = codec.decode(gpu_record.Change, {
        **content, 'before': _layout(content['before']),
        'touched': list(map(_instance, content['touched']))})
    return {change.gpu: {'change': change}}


def _health(content: Any) -> Parts:
    return {model.PciAddress.parse(item['gpu']): {'health': codec.decode(
        health_record.HealthRecord, {
            'boot': item['boot'], 'uuid': item['uuid'],
            'conditions': item['ailments']})} for item in content}


def _by_address(kind: type, part: str, content: Any) -> Parts:
    return {model.PciAddress.parse(address): {part: codec.decode(kind, item)}
            for address, item in dict(content).items()}


def _disabled(content: Any) -> Parts:
    return {model.PciAddress.parse(address): {
        'cordons': (_DISABLED,)}
            for address in content}


def current(content: Any) -> Any:
    """Convert a record to the keys of this release.

    Records of earlier releases have ``disabled`` instead of ``cordons``, and
    ``sickness`` with ``ailments`` instead of ``health`` with ``conditions``.
    Version 1 has only NVML's answers about the board.

    :param content: the content of a record of any release.
    :raises ValueError: if ``disabled`` is not a boolean.
    """
    if not isinstance(content, dict):
        return content
    found = {'board': content} if 'ids' in content else dict(content)
    if 'disabled' in found and codec.decode(bool, found.pop('disabled')):
        found['cordons'] = codec.encode((_DISABLED,))
    if 'sickness' in found:
        health = found.pop('sickness')
        if isinstance(health, dict) and 'ailments' in health:
            health = {**health, 'conditions': health['ailments']}
            del health['ailments']
        found['health'] = health
    return found


def _layout(item: Mapping[str, Any]) -> dict[str, Any]:
    return {'enabled': item['enabled'], 'pending': item['pending'],
            'instances': list(map(_instance, item['instances']))}


def _instance(item: Mapping[str, Any]) -> dict[str, Any]:
    return {'profile_id': item['profile_id'],
            'placement': {'start': item['start'], 'size': item['size']},
            'compute': item.get('compute', [])}


_KINDS: tuple[tuple[str, str, Callable[[Any], Parts]], ...] = (
    (_JOURNAL, 'cyborg-gpu journal', _claims),
    ('fixed.json', 'cyborg-gpu fixed vGPUs', _fixed),
    ('checkpoint.json', 'cyborg-gpu checkpoint', _saved_layouts),
    ('changes/*.json', 'cyborg-gpu layout change', _change),
    ('health.json', 'cyborg-gpu health', _health),
    ('cleaning.json', 'cyborg-gpu cleaning', functools.partial(
        _by_address, cleaning.Known, 'tenancy')),
    ('reported.json', 'cyborg-gpu report', functools.partial(
        _by_address, gpu_record.Reported, 'reported')),
    ('disabled.json', 'cyborg-gpu disabled', _disabled),
)
