# SPDX-License-Identifier: Apache-2.0

"""Find and read the layouts of bare-metal servers.

The sources of a server's layout are, in this order: the file that a deploy
step put into the image, and the server's metadata, which cloud-init reads from
the config drive or the metadata service. The first one with a layout counts.
In the metadata the layout is below :data:`KEY`. A layout is used only after it
has been parsed completely.
"""

from __future__ import annotations

import dataclasses
import json
import re

from oslo_config import cfg

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.baremetal import node
from cyborg_gpu_driver.conf import baremetal
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


def search(layout_file: str, instance_data: str) -> Found | None:
    """Return the layout of the first source that has one.

    :raises DocumentError, CloudError: if a layout cannot be used, or a
        source cannot be read.
    """
    return _in_file(layout_file) or _in_metadata(instance_data)


def _in_file(path: str) -> Found | None:
    """Return the layout of a layout file of one entry; None without a file."""
    text = _read(path)
    return None if text is None else Found(
        path, layout_file.LayoutFile.parse(text, path).entry())


def _in_metadata(path: str) -> Found | None:
    """Return the layout in the server's metadata; None if it has none."""
    text = _read(path)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise layout_yaml.place_in(path).error(
            f'not JSON: {error}', 'look at the log of cloud-init') from error
    for key in _META:
        found = _object(found, path).get(key) or {}
    return _found(found[KEY], path) if KEY in _object(found, path) else None


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


def of_operator(conf: cfg.ConfigOpts) -> tuple[layout_file.LayoutFile, ...]:
    """Return the layouts of ``[gpu_baremetal] layout_files``, in that order.

    :raises InvalidConfiguration: naming the file that cannot be read.
    :raises DocumentError: naming file and entry.
    """
    found = []
    for path in conf[baremetal.GROUP].layout_files:
        try:
            with open(path, encoding='utf-8') as stream:
                text = stream.read()
        except (OSError, ValueError) as error:
            raise exception.InvalidConfiguration(
                group=baremetal.GROUP, option='layout_files', value=path,
                reason=str(error)) from error
        found.append(layout_file.LayoutFile.parse(text, path))
    return tuple(found)
