# SPDX-License-Identifier: Apache-2.0

"""JSON files that survive a crash: replaced atomically, with a checksum."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception

_MODE = 0o640
"""The group of the directory may read: the metrics exporter does."""
_NEW = '.new'
"""Suffix of the name of a file that is being written."""


def write(path: str, kind: str, version: int, content: Any) -> None:
    """Replace a file atomically and sync it to the disk."""
    directory = os.path.dirname(path)
    text = _text(content)
    head = json.dumps({'kind': kind, 'version': version,
                       'checksum': _checksum(text)})
    try:
        make_directory(directory)
        with _named(path):
            _create(path, f'{head[:-1]}, "content": {text}}}\n', os.replace)
            with _opened(directory) as descriptor:
                os.fsync(descriptor)
    except OSError as error:
        raise exception.JournalError(
            path=path, reason=f'cannot be written: {error.strerror}; '
            'check that its directory exists, has room and belongs to the '
            'user that runs cyborg-agent') from error


def mark(path: str) -> tuple[int, ...] | None:
    """A value that changes when the file is replaced; None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def read(path: str, kind: str, version: int) -> Any:
    """The content that :func:`write` put there; None without a file.

    :raises JournalError: if the file is of another kind, or damaged.
    """
    document = _document(path, kind)
    if document is None:
        return None
    if document.get('version') != version:
        raise exception.JournalError(
            path=path, reason=f'has version {document.get("version")}, but '
            f'this release reads {version}')
    if not _is_sound(document):
        raise exception.JournalError(
            path=path, reason='does not match its checksum')
    return document['content']


def salvage(path: str, kind: str) -> tuple[Any, bool]:
    """The content of a file that :func:`read` refuses, of any version.

    :returns: the content, None if nothing can be read; and whether it
        matches its checksum.
    """
    try:
        document = _document(path, kind) or {}
    except exception.JournalUnreadable:
        raise
    except exception.JournalError:
        document = {}
    return document.get('content'), _is_sound(document)


def _document(path: str, kind: str) -> dict[str, Any] | None:
    """The document of a file, unchecked; None without a file."""
    try:
        with open(path, encoding='utf-8', opener=regular) as stream:
            document = json.load(stream)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise exception.JournalUnreadable(
            path=path, reason=f'cannot be read: {error}') from error
    except (ValueError, RecursionError) as error:
        raise exception.JournalError(
            path=path, reason=f'cannot be read: {error}') from error
    if not isinstance(document, dict) or document.get('kind') != kind:
        raise exception.JournalError(path=path, reason=f'is not a {kind}')
    return document


def regular(path: str, flags: int) -> int:
    """Open a regular file only: for the ``opener`` of :func:`open`.

    Without O_NONBLOCK, the open of a FIFO waits for another process.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular(path)
    return descriptor


def _irregular(path: str) -> OSError:
    return OSError(errno.EINVAL, 'Not a regular file', path)


def _is_sound(document: Mapping[str, Any]) -> bool:
    return document.get('checksum') == _checksum(
        _text(document.get('content')))


def make_directory(path: str) -> None:
    """Create a directory and its missing parents.

    A directory that root creates gets the owner of its parent: an operator's
    command runs as root and cyborg-agent as its own user, and both write
    here. The directory gets its owner before its name, so that a process
    that is killed leaves nothing that the agent cannot use.
    """
    if os.path.isdir(path):
        return
    above, name = os.path.split(os.path.abspath(path))
    make_directory(above)
    with _named(path):
        new = tempfile.mkdtemp(dir=above, prefix=f'.{name}.', suffix=_NEW)
        try:
            with _opened(new) as descriptor:
                os.fchmod(descriptor, 0o750)
                _hand_over(descriptor, above)
            os.rename(new, path)
        except OSError:
            os.rmdir(new)
            # Another process may have been faster.
            if not os.path.isdir(path):
                raise


def make_file(path: str) -> None:
    """Create an empty file, unless it exists, as :func:`make_directory` does.
    """
    if os.path.isfile(path):
        return
    if os.path.exists(path):
        raise _irregular(path)
    with _named(path):
        try:
            _create(path, '', os.link)
        except FileExistsError:
            # Another process was faster, or a link is broken: stat raises
            # then.
            os.stat(path)


def leftovers(path: str) -> list[str]:
    """Files of writes that were never completed.

    The caller must keep others from writing ``path`` meanwhile.
    """
    return glob.glob(f'{glob.escape(path)}.*{_NEW}')


def keep_aside(path: str) -> str:
    """Keep a copy of an unusable file, which remains until it is replaced.

    If the file was not replaced after an earlier call, this is the same copy.
    """
    number = 1
    while mark(kept := f'{path}.unusable-{number}') != mark(path):
        try:
            os.link(path, kept)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise exception.JournalError(
                path=path, reason=f'cannot be kept aside: {error}') from error
    return kept


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Make errors name the file instead of its temporary name.

    So the same problem has the same text each time.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _create(path: str, text: str, place: Callable[[str, str], None]) -> None:
    """Write a new file with its owner and mode, and then give it its name.

    :param place: os.replace, or os.link to keep a file of that name. The new
        file is closed before others can lock it: see
        :mod:`cyborg_gpu_driver.locks`.
    """
    directory, name = os.path.split(path)
    descriptor, new = tempfile.mkstemp(dir=directory, prefix=f'{name}.',
                                       suffix=_NEW)
    try:
        with os.fdopen(descriptor, 'w', encoding='utf-8') as stream:
            stream.write(text)
            stream.flush()
            os.fchmod(stream.fileno(), _MODE)
            _hand_over(stream.fileno(), directory)
            if text:
                os.fsync(stream.fileno())
        place(new, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)


def _hand_over(descriptor: int, directory: str) -> None:
    """Give a file that root has just created the owner of its directory.

    The descriptor is used because the owner of the directory can replace any
    name there with a link, and would become the owner of the link's target.
    """
    if os.geteuid() == 0:
        owner = os.stat(directory)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _text(content: Any) -> str:
    """JSON with one item per line, for people to read and compare.

    json.dumps is used because json.dump is pure Python.
    """
    if isinstance(content, list):
        lines = [json.dumps(item, sort_keys=True) for item in content]
        return '[\n' + ',\n'.join(lines) + '\n]'
    if isinstance(content, dict):
        lines = [f'{json.dumps(key)}: {json.dumps(item, sort_keys=True)}'
                 for key, item in sorted(content.items())]
        return '{\n' + ',\n'.join(lines) + '\n}'
    return json.dumps(content)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _opened(directory: str) -> Iterator[int]:
    descriptor = os.open(directory,
                         os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
