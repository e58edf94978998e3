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

"""Find and read the layout of a bare-metal server.

The sources are, in this order: the file that a deploy step put into the image,
the config drive, the metadata service. Several may have a layout, if the
layouts agree. On a config drive and in the metadata service the layout is
below :data:`KEY`, in the server's metadata or in vendor data. No source is
trusted: a layout is used only after it has been parsed completely.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno as errno_codes
import http.client
import ipaddress
import json
import os
import re
import socket
import stat
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import yaml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.baremetal import node
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml

KEY = inventory.LAYOUT_KEY
"""The key in the server's metadata (``meta``) and in vendor data."""
LIMIT = 1 << 20
"""Bytes of a document; the services that write them stay below this."""

_LAYOUT_LIMIT = 1 << 16
"""Characters of a layout; one with an item for each of 16 GPUs has 3000."""
_DEPTH = 16
"""Nesting of lists and mappings; a layout has five levels."""
_META = 'meta_data.json'
_VENDOR = ('vendor_data2.json', 'vendor_data.json')
_NAME = re.compile(r'[A-Za-z0-9][\w.+-]{0,254}', re.ASCII)

Read = Callable[[str], 'str | None']
"""Returns the text of a document by its name, None if it does not exist.
Raises CloudError if that cannot be determined."""


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

        :param gpus: the GPUs of this machine, with their profiles.
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


@dataclasses.dataclass(frozen=True)
class Search:
    """The result of a search in all sources."""

    found: Found | None = None
    others: tuple[Found, ...] = ()
    """The layouts of the sources after the first."""
    notes: tuple[str, ...] = ()
    """Further messages for people."""


def search(places: Iterable[Iterable[Found]]) -> Search:
    """Return the first layout that is found, and the others.

    If a source after the first layout cannot be read or used, a note says so.

    :param places: the sources; each is read when its turn comes.
    :raises DocumentError, CloudError: if a layout cannot be used, or a
        source cannot be read, before a first layout is found.
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
    """Yield the layout of a layout file of one entry; none without a file.

    :raises DocumentError, CloudError: as :func:`search`.
    """
    text = read_file(path, follow=True)
    if text is not None:
        _check(text, path)
        yield Found(path, layout_file.LayoutFile.parse(text, path).entry())


def in_documents(read: Read, place: str) -> Iterator[Found]:
    """Yield the layouts in documents of a config drive or metadata service.

    :param read: reads a document by its name, such as ``meta_data.json``.
    :param place: the source of the documents, for people.
    :raises DocumentError, CloudError: as :func:`search`.
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
        # Dynamic vendor data is below the name of the service that
        # provides it.
        for service, content in vendor.items():
            if isinstance(content, dict) and KEY in content \
                    and service != KEY:
                yield _found(content[KEY], f'{source}, {service}')


def read_file(path: str, follow: bool = False) -> str | None:
    """Return the text of an untrusted file; None without a file.

    :param follow: whether the path may be a symbolic link.
    :raises CloudError: if it cannot be read, is too long, or is not
        a regular file.
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
    """Decode the data of a document, which may exceed :data:`LIMIT`.

    :raises CloudError: if it exceeds the limit, or is not UTF-8.
    """
    if len(data) > LIMIT:
        raise _refused(source, f'is longer than {LIMIT} bytes')
    try:
        return data.decode('utf-8')
    except UnicodeDecodeError as error:
        raise _refused(source, f'is not UTF-8: {error.reason} at byte '
                       f'{error.start}') from error


def _effect(entry, gpus):
    """Return the selected GPUs, and what is wanted of those reachable."""
    chosen = entry.chosen(gpus)
    reachable = [index for index in chosen
                 if not condition.obstacle(gpus[index])]
    return chosen, entry.for_chosen(gpus, reachable)


def _refused(source, reason):
    return exception.CloudError(f'{source}: {reason}')


def _document(read, name, source):
    """Return a document's mapping; empty if there is no document."""
    text = read(name)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise layout_yaml.place_in(source).error(
            f'not JSON: {error}', 'correct the program that writes '
            'it') from error
    # vendor_data.json may contain anything that the operator wrote.
    return content if isinstance(content, dict) else {}


def _below(content, key, source):
    value = content.get(key) or {}
    if not isinstance(value, dict):
        raise layout_yaml.place_in(source, key).wrong(value, 'an object')
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
    """Refuse text that takes long to parse, or grows when it is printed.

    :raises DocumentError: if the text does either.
    """
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


# The config drive: a small file system that the cloud gives to a server.
#
# Nova's documentation, "Config drives": ISO 9660 or VFAT, labelled config-2.

DOCUMENTS = ('openstack', 'latest')

BY_LABEL = '/dev/disk/by-label'
"""The directory in which udev names block devices by their label."""
TYPES = ('iso9660', 'vfat')

_LABELS = ('config-2', 'CONFIG-2')
"""On VFAT the label has capitals."""
_MOUNTS = '/proc/self/mountinfo'
_ESCAPE = re.compile(r'\\([0-7]{3})')
_FLAGS = 1 | 2 | 4 | 8
"""MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC (sys/mount.h)."""
_NOFOLLOW = 8
"""UMOUNT_NOFOLLOW (sys/mount.h)."""
_OTHER_TYPE = frozenset({errno_codes.EINVAL, errno_codes.ENODEV})
"""The device, or the kernel, has no such file system."""


@contextlib.contextmanager
def opened(by_label: str = BY_LABEL, types: Sequence[str] = TYPES
           ) -> Iterator[str | None]:
    """Yield the directory of the config drive's files; None without a drive.

    If the drive is mounted, this is its mount point. Otherwise the drive is
    mounted read-only in a temporary directory, as long as the context lasts.

    :param types: file systems to try.
    :raises CloudError: if it cannot be mounted.
    """
    device = next((path for path in (os.path.join(by_label, label)
                                     for label in _LABELS)
                   if os.path.exists(path)), None)
    if device is None:
        yield None
        return
    mounted = _mount_point(device)
    if mounted is not None:
        yield mounted
        return
    with contextlib.ExitStack() as stack:
        try:
            directory = os.path.join(stack.enter_context(
                tempfile.TemporaryDirectory(prefix='cyborg-gpu-')),
                'config-drive')
            os.mkdir(directory, 0o700)
        except OSError as error:
            raise exception.CloudError(
                f'{device}: cannot be mounted: {error}') from error
        _mount(device, directory, types)
        stack.callback(_call, 'umount2', device, directory.encode(),
                       _NOFOLLOW)
        yield directory


def read(directory: str, name: str) -> str | None:
    """Return a document of a config drive; None if it has none of the name.

    :param directory: of the drive's files.
    :raises CloudError: if it cannot be read.
    """
    return read_file(os.path.join(directory, *DOCUMENTS,
                                  name))


def _mount_point(device):
    """Return where the whole of a block device is mounted; None if nowhere.

    Fields of a line (proc(5)): id of the mount, id of its parent mount,
    device, directory of the file system, mount point.
    """
    number = os.stat(device).st_rdev
    wanted = [f'{os.major(number)}:{os.minor(number)}', '/']
    with open(_MOUNTS, encoding='utf-8', errors='surrogateescape') as lines:
        for line in lines:
            fields = line.split(' ')
            if fields[2:4] == wanted:
                return _ESCAPE.sub(lambda match: chr(int(match[1], 8)),
                                   fields[4])
    return None


def _mount(device, directory, types):
    for name in types:
        try:
            _call('mount', device, device.encode(), directory.encode(),
                  name.encode(), _FLAGS, None)
            return
        except exception.CloudError as error:
            if getattr(error.__cause__, 'errno', None) not in _OTHER_TYPE:
                raise
    raise exception.CloudError(
        f'{device}: cannot be mounted: it is not ' + ' or '.join(types)
        + ', or the kernel does not know that')


def _call(name, device, *arguments):
    """Call a function of the C library."""
    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, name)
    # Flags of mount(2) are long.
    call.argtypes = {'mount': [ctypes.c_char_p] * 3
                     + [ctypes.c_ulong, ctypes.c_void_p],
                     'umount2': [ctypes.c_char_p, ctypes.c_int]}[name]
    if call(*arguments):
        error = OSError(ctypes.get_errno(),
                        os.strerror(ctypes.get_errno()))
        raise exception.CloudError(
            f'{device}: {name}: {error.strerror}') from error


# The metadata service, which gives a server its metadata.
#
# It has an address of its own (Nova's documentation, "Metadata service"), so
# requests use no proxy. It never redirects, so redirections are not followed.

URL = 'http://169.254.169.254/openstack/latest'

_ATTEMPT = 5.0
"""Seconds that one request may take."""
_PAUSE = 1.0
_CHUNK = 1 << 16
_ANY_PORT = 80
_CONNECTIONS = {'http': http.client.HTTPConnection,
                'https': http.client.HTTPSConnection}
_NOT_NOW = frozenset({http.HTTPStatus.REQUEST_TIMEOUT,
                      http.HTTPStatus.TOO_MANY_REQUESTS})


class MetadataService:
    """Queries the metadata service, and retries while it does not answer.

    :param url: base URL of its documents.
    :param timeout: seconds, for all requests together.
    :param doubtful: whether the service did not answer at the last boot.
        Then there is only one attempt, unless there is no route to it yet.
    :param clock: a monotonic clock, in seconds.
    :param sleep: waits for a number of seconds.
    :raises InvalidValue: if ``url`` is not a usable URL.
    """

    def __init__(self, url: str, timeout: float, doubtful: bool = False,
                 clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], object] = time.sleep):
        self.url = url.rstrip('/')
        self._connect, self._host, self._port, self._path = _parts(self.url)
        self._clock = clock
        self._sleep = sleep
        self._end = clock() + timeout
        self._doubtful = doubtful
        self._answered = False
        self.silent: str | None = None
        """Why there seems to be no such service; None if a service has
        answered, or if there was no request."""

    def read(self, name: str) -> str | None:
        """Return a document; None without the document or the service.

        :raises CloudError: if the service exists and does not return
            the document.
        """
        while self.silent is None:
            try:
                status, text = self._ask(name)
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or repr(error)
            else:
                if status == http.HTTPStatus.OK:
                    return text
                if status == http.HTTPStatus.NOT_FOUND:
                    return None
                problem = f'returned HTTP {status}'
                if status < 500 and status not in _NOT_NOW:
                    raise self._refused(name, problem)
            if self._left() <= _PAUSE or (
                    self._doubtful and not self._answered
                    and self._has_route()):
                if self._answered:
                    raise self._refused(name, problem)
                self.silent = problem
                return None
            self._sleep(_PAUSE)
        return None

    def _ask(self, name):
        """Return the HTTP status and the text."""
        connection = self._connect(
            self._host, self._port,
            timeout=max(0.1, min(_ATTEMPT, self._left())))
        try:
            connection.request('GET', f'{self._path}/{name}')
            response = connection.getresponse()
            self._answered = True
            return response.status, decoded(
                self._body(response), f'{self.url}/{name}')
        finally:
            connection.close()

    def _body(self, response):
        """Return the whole body, or more than the limit."""
        body = b''
        while len(body) <= LIMIT:
            chunk = response.read1(_CHUNK)
            if not chunk:
                break
            body += chunk
            if self._left() <= 0:
                raise TimeoutError('it did not answer in time')
        return body

    def _has_route(self):
        """Whether the kernel has a route to the service.

        If it does, no late network is the cause. Connecting a datagram socket
        looks up the route and sends nothing (connect(2), udp(7)). Resolving a
        host name may need a network.
        """
        try:
            address = ipaddress.ip_address(self._host)
            with socket.socket(
                    socket.AF_INET if address.version == 4
                    else socket.AF_INET6, socket.SOCK_DGRAM) as datagrams:
                datagrams.connect((self._host, self._port or _ANY_PORT))
        except (OSError, ValueError):
            return False
        return True

    def _left(self):
        return self._end - self._clock()

    def _refused(self, name, reason):
        return exception.CloudError(f'{self.url}/{name}: {reason}')


def _parts(url):
    try:
        parts = urllib.parse.urlsplit(url)
        if (parts.scheme in _CONNECTIONS and parts.hostname
                and not parts.query and not parts.fragment):
            return (_CONNECTIONS[parts.scheme], parts.hostname, parts.port,
                    parts.path)
    except ValueError:
        pass
    raise exception.InvalidValue(
        what='metadata service', value=url,
        expected=f'expected a URL such as {URL}')
