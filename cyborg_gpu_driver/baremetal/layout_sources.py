# SPDX-License-Identifier: Apache-2.0

"""Find and read the layout of a bare-metal server.

The sources are, in this order: the file that a deploy step put into the image,
and the server's metadata, which cloud-init reads from the config drive or the
metadata service. Both may have a layout, if the layouts agree. In the metadata
the layout is below :data:`KEY`. No source is trusted: a layout is used only
after it has been parsed completely.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator

import yaml

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.baremetal import node
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml

KEY = inventory.LAYOUT_KEY
"""The key in the server's metadata (``meta``)."""
INSTANCE_DATA = '/run/cloud-init/instance-data.json'
"""Where cloud-init writes the metadata at each boot ("Instance metadata" in
its documentation). ``ds.meta_data`` is OpenStack's :file:`meta_data.json`
(cloudinit/sources/DataSourceOpenStack.py and DataSourceConfigDrive.py)."""
LIMIT = 1 << 20
"""Bytes of a document; the programs that write them stay below this."""

_LAYOUT_LIMIT = 1 << 16
"""Characters of a layout; one with an item for each of 16 GPUs has 3000."""
_DEPTH = 16
"""Nesting of lists and mappings; a layout has five levels."""
_META = ('ds', 'meta_data', 'meta')
_NAME = re.compile(r'[A-Za-z0-9][\w.+-]{0,254}', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Found:
    """A layout, and its source."""

    source: str
    """A description for people."""
    wanted: layout_file.Entry | str
    """What is wanted, or the name of a generated layout for the GPUs of the
    machine."""

    @property
    def layout(self) -> str:
        """The layout's name."""
        return (self.wanted if isinstance(self.wanted, str)
                else self.wanted.name)

    def entry(self, gpus: tuple[model.Gpu, ...]) -> layout_file.Entry:
        """Return the layout itself.

        :raises DocumentError: if these GPUs have no layout of that name.
        """
        if isinstance(self.wanted, str):
            return _named(self.source, self.wanted, gpus)
        return self.wanted

    def differs(self, other: Found, gpus: tuple[model.Gpu, ...]) -> bool:
        """Whether another layout has a different effect on these GPUs.

        :raises DocumentError: if one of the layouts does not suit these GPUs.
        """
        mine, others = (_effect(found.entry(gpus), gpus)
                        for found in (self, other))
        return mine != others


def search(layout_file: str, instance_data: str) -> list[Found]:
    """Return the layouts of both sources, the file's first.

    :raises DocumentError, CloudError: if a layout cannot be used, or a
        source cannot be read.
    """
    return [*in_file(layout_file), *in_metadata(instance_data)]


def in_file(path: str) -> Iterator[Found]:
    """Yield the layout of a layout file of one entry; none without a file."""
    text = _read(path)
    if text is not None:
        _check(text, path)
        yield Found(path, layout_file.LayoutFile.parse(text, path).entry())


def in_metadata(path: str) -> Iterator[Found]:
    """Yield the layout in the server's metadata; none without the file."""
    text = _read(path)
    if text is None:
        return
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise layout_yaml.place_in(path).error(
            f'not JSON: {error}', 'look at the log of cloud-init') from error
    for key in _META:
        found = _object(found, path).get(key) or {}
    if KEY in _object(found, path):
        yield _found(found[KEY], path)


def _read(path):
    """Return the text of an untrusted file; None without a file."""
    try:
        with open(path, 'rb', opener=durable.regular) as stream:
            data = stream.read(LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _refused(path, f'cannot be read: {error.strerror}') from error
    if len(data) > LIMIT:
        raise _refused(path, f'is longer than {LIMIT} bytes')
    try:
        return data.decode('utf-8')
    except UnicodeDecodeError as error:
        raise _refused(path, f'is not UTF-8: {error.reason} at byte '
                       f'{error.start}') from error


def _effect(entry, gpus):
    """Return the selected GPUs, and what is wanted of those reachable."""
    chosen = entry.chosen(gpus)
    reachable = [index for index in chosen
                 if not condition.obstacle(gpus[index])]
    return chosen, entry.for_chosen(gpus, reachable)


def _refused(source, reason):
    return exception.CloudError(f'{source}: {reason}')


def _object(value, source):
    if not isinstance(value, dict):
        raise layout_yaml.place_in(source).wrong(value, 'an object')
    return value


def _found(value, source):
    """Return the layout in the value below the key."""
    source = f'{source}, {KEY}'
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    _check(text, source)
    if isinstance(value, str) and _NAME.fullmatch(text):
        return Found(source, text)
    value = layout_yaml.plain(text, layout_yaml.place_in(source))
    if isinstance(value, dict) and layout_yaml.ROOT in value:
        return Found(source,
                     layout_file.LayoutFile.parse(text, source).entry())
    if isinstance(value, str):
        raise layout_yaml.place_in(source).wrong(
            value, 'the name of a layout, such as all-1g.10gb, or the layout '
            'itself')
    return Found(source, _named(source, value))


def _named(source, value, gpus=()):
    return dataclasses.replace(
        node.entry_of(value, gpus, source=source), source=source)


def _check(text: str, source: str) -> None:
    """Refuse text that takes long to parse, or grows when it is printed."""
    place = layout_yaml.place_in(source)
    if len(text) > _LAYOUT_LIMIT:
        raise place.error(f'longer than {_LAYOUT_LIMIT} characters',
                          'give a shorter one')
    depth = 0
    for event in _events(text):
        depth += (isinstance(event, yaml.CollectionStartEvent)
                  - isinstance(event, yaml.CollectionEndEvent))
        if depth > _DEPTH:
            raise place.error(f'nested more than {_DEPTH} levels deep',
                              'expected a layout')
        if isinstance(event, yaml.AliasEvent):
            raise place.error('found a YAML alias',
                              'repeat the content instead')


def _events(text):
    """Yield the YAML events, up to where the text is malformed.

    The parser that reads the text next reports what is wrong.
    """
    with contextlib.suppress(yaml.YAMLError, ValueError):
        yield from yaml.parse(text, yaml.SafeLoader)
