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

"""Where the layout of a bare-metal server stands, and what it says.

In this order: the file that a deploy step put into the image, the config
drive, the metadata service. Several may have it, if they agree. On a config
drive, and in the metadata service, the layout stands below :data:`KEY` in the
server's metadata or in vendor data. Whoever wrote it, it is not believed
before it was understood whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import stat
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

import yaml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal.inventory import layouts
from cyborg_gpu_driver.baremetal.inventory import names
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import schema as layout_schema
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml

KEY = names.LAYOUT_KEY
"""In the server's metadata (``meta``) and in vendor data."""
LIMIT = 1 << 20
"""Bytes of a document; the services that write them keep below this."""

_LAYOUT_LIMIT = 1 << 16
"""Characters of a layout; one with an item for each of 16 GPUs has 3000."""
_DEPTH = 16
"""Of lists and mappings in a layout, which has five."""
_META = 'meta_data.json'
_VENDOR = ('vendor_data2.json', 'vendor_data.json')
_NAME = re.compile(r'[A-Za-z0-9][\w.+-]{0,254}', re.ASCII)

Read = Callable[[str], 'str | None']
"""The text of a document by its name, None where there is none. Raises
LayoutSourceError if that cannot be found out."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A layout, and where it stands."""

    source: str
    """For people."""
    wanted: layout_file.Entry | str
    """What is wanted, or the name of a layout that makes sense for the GPUs
    there are."""

    @property
    def layout(self) -> str:
        """The layout's name."""
        return (self.wanted if isinstance(self.wanted, str)
                else self.wanted.name)

    def entry(self, gpus: tuple[model.Gpu, ...]) -> layout_file.Entry:
        """The layout itself.

        :param gpus: those of this machine, with their profiles.
        :raises LayoutError: if these GPUs have no layout of that name.
        """
        if isinstance(self.wanted, str):
            return _named(self.source, self.wanted, gpus)
        return self.wanted

    def differs(self, other: Found, gpus: tuple[model.Gpu, ...]) -> bool:
        """Whether another layout makes something else of these GPUs.

        :raises LayoutError: if one of them is not for these GPUs.
        """
        mine, others = (_effect(found.entry(gpus), gpus)
                        for found in (self, other))
        return mine != others


@dataclasses.dataclass(frozen=True)
class Search:
    """What a look into all places has found."""

    found: Found | None = None
    others: tuple[Found, ...] = ()
    """What the sources after the first have."""
    notes: tuple[str, ...] = ()
    """What else there is to say."""


def search(places: Iterable[Iterable[Found]]) -> Search:
    """The first layout that is found, and the others.

    What cannot be read or used is named if it comes after the first.

    :param places: each looked into when its turn comes.
    :raises LayoutError, LayoutSourceError: if a layout cannot be used, or a
        place cannot be looked into, that would have been the first.
    """
    found, others, notes = None, [], []
    for place in places:
        try:
            for item in place:
                if found is None:
                    found = item
                else:
                    others.append(item)
        except exception.GpuDriverError as error:
            if found is None:
                raise
            notes.append(f'not used: {error}')
    return Search(found, tuple(others), tuple(notes))


def in_file(path: str) -> Iterator[Found]:
    """The layout of a layout file of one entry; none without the file.

    :raises LayoutError, LayoutSourceError: as :func:`search`.
    """
    text = read_file(path, follow=True)
    if text is not None:
        _check(text, path)
        yield Found(path, layout_file.LayoutFile.parse(text, path).entry())


def in_documents(read: Read, place: str) -> Iterator[Found]:
    """Layouts in the documents of a config drive or metadata service.

    :param read: of a name such as ``meta_data.json``.
    :param place: what they are documents of, for people.
    :raises LayoutError, LayoutSourceError: as :func:`search`.
    """
    source = f'{place}, {_META}'
    meta = _below(_document(read, _META, source), 'meta', source)
    if KEY in meta:
        yield _found(meta[KEY], f'{source}, meta')
    for name in _VENDOR:
        source = f'{place}, {name}'
        vendor = _document(read, name, source)
        if KEY in vendor:
            yield _found(vendor[KEY], source)
        # What dynamic vendor data is made of stands below the name of the
        # service that it is from.
        for service, content in vendor.items():
            if isinstance(content, dict) and KEY in content \
                    and service != KEY:
                yield _found(content[KEY], f'{source}, {service}')


def read_file(path: str, follow: bool = False) -> str | None:
    """The text of a file that others wrote; None without a file.

    :param follow: whether a symbolic link may stand there.
    :raises LayoutSourceError: if it cannot be read, is too long, or no
        file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags if follow
                             else flags | os.O_NOFOLLOW)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _refused(path, 'is not a file')
            data = b''
            while len(data) <= LIMIT:
                chunk = os.read(descriptor, LIMIT + 1)
                if not chunk:
                    break
                data += chunk
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _refused(path, f'cannot be read: {error.strerror}') from error
    return decoded(data, path)


def decoded(data: bytes, source: str) -> str:
    """Text of what was read: all of it, or more than :data:`LIMIT`.

    :raises LayoutSourceError: if it is too long, or not UTF-8.
    """
    if len(data) > LIMIT:
        raise _refused(source, f'is longer than {LIMIT} bytes')
    try:
        return data.decode('utf-8')
    except UnicodeDecodeError as error:
        raise _refused(source, f'is not UTF-8: {error.reason} at byte '
                       f'{error.start}') from error


def _effect(entry, gpus):
    """What is to become of each GPU that a layout speaks of."""
    chosen = entry.chosen(gpus)
    reachable = [index for index in chosen
                 if not condition.obstacle(gpus[index])]
    return chosen, entry.for_chosen(gpus, reachable)


def _refused(source, reason):
    return exception.LayoutSourceError(source=source, reason=reason)


def _document(read, name, source):
    """A document's mapping, empty where there is no document."""
    text = read(name)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise layout_schema.place(source).error(
            f'not JSON: {error}', 'correct the program that writes '
            'it') from error
    # vendor_data.json is whatever an operator's file says.
    return content if isinstance(content, dict) else {}


def _below(content, key, source):
    value = content.get(key) or {}
    if not isinstance(value, dict):
        raise layout_schema.place(source, key).wrong(value, 'an object')
    return value


def _found(value, source):
    """What stands below the key."""
    source = f'{source}, {KEY}'
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    _check(text, source)
    if isinstance(value, str) and _NAME.fullmatch(text):
        return Found(source, text)
    value = layout_yaml.plain(text, layout_schema.place(source))
    if isinstance(value, dict) and layout_schema.ROOT in value:
        return Found(source,
                     layout_file.LayoutFile.parse(text, source).entry())
    if isinstance(value, str):
        raise layout_schema.place(source).wrong(
            value, 'the name of a layout, such as all-1g.10gb, or the layout '
            'itself')
    return Found(source, _named(source, value))


def _named(source, value, gpus=()):
    return dataclasses.replace(
        layouts.entry_of(value, gpus, source=source), source=source)


def _check(text: str, source: str) -> None:
    """Refuse text that takes long to read, or grows when it is printed.

    :raises LayoutError: if it does.
    """
    place = layout_schema.place(source)
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
    """What YAML there is, up to where it is malformed.

    Whoever reads it in earnest says what is wrong.
    """
    with contextlib.suppress(yaml.YAMLError, ValueError):
        yield from yaml.parse(text, yaml.SafeLoader)
