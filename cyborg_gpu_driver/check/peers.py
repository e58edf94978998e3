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


"""Facts about another host, for the check of live migration to that host.

``cyborg-gpu check --peer-facts`` writes them as a JSON document on the other
host, and ``cyborg-gpu check --peer FILE`` reads the document on this host.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from cyborg_gpu_driver import schema

VERSION = 1
STANDARD_INPUT = '-'
_MOST_GPUS = 64
_SIZE_MAX = 1 << 20
"""The most characters that a document may have."""
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
    """As in :class:`cyborg_gpu_driver.host.snapshot.migration.Migration`.
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


def read(path: str) -> Peer:
    """Read a document that ``--peer-facts`` wrote.

    :param path: the path of its file; ``-`` is standard input.
    :raises DocumentError: if it cannot be read or has another format.
    """
    place = schema.Place('standard input' if path == STANDARD_INPUT
                         else path)
    try:
        content = json.loads(_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise place.error(
            str(error), 'expected what "cyborg-gpu check --peer-facts" '
            'writes on the other host') from error
    schema.check(content, _SCHEMA, place)
    return _peer(content)


def _text(path: str) -> str:
    if path == STANDARD_INPUT:
        text = sys.stdin.read(_SIZE_MAX + 1)
    else:
        with open(path, encoding='utf-8') as stream:
            text = stream.read(_SIZE_MAX + 1)
    if len(text) > _SIZE_MAX:
        raise ValueError(f'more than {_SIZE_MAX} characters')
    return text


def _peer(content: dict[str, Any]) -> Peer:
    return Peer(content['host'], content['driver'], tuple(
        Gpu(**{**gpu, 'types': tuple(gpu['types'])})
        for gpu in content['gpus']))
