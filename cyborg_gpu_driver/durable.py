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

"""JSON files that survive a crash: whole, checksummed, or the old one."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import tempfile
from typing import Any

from cyborg_gpu_driver import exception

_NEW = '.new'
"""How the name ends of a file that is being written."""


def write(path: str, kind: str, version: int, content: Any) -> None:
    """Replace a file at once and see it on the disk.

    :param kind: what the file is, checked when it is read.
    :param content: what JSON can hold.
    :raises JournalError: if the directory cannot be written.
    """
    directory = os.path.dirname(path)
    text = _text(content)
    head = json.dumps({'kind': kind, 'version': version,
                       'checksum': _checksum(text)})
    try:
        make_directory(directory)
        descriptor, temporary = tempfile.mkstemp(
            dir=directory, prefix=os.path.basename(path) + '.',
            suffix=_NEW)
        try:
            with os.fdopen(descriptor, 'w', encoding='utf-8') as stream:
                stream.write(f'{head[:-1]}, "content": {text}}}\n')
                stream.flush()
                os.fsync(stream.fileno())
            hand_over(temporary)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _sync_directory(directory)
    except OSError as error:
        raise exception.JournalError(
            path=path, reason=f'cannot be written: {error}; check that '
            '[gpu] state_path exists, has room and belongs to the user '
            'that runs cyborg-agent') from error


def read(path: str, kind: str, version: int) -> Any:
    """The content that :func:`write` put there; None without a file.

    :raises JournalUnreadable: if this process cannot read it.
    :raises JournalError: if it is not such a file, or damaged.
    """
    try:
        with open(path, encoding='utf-8') as stream:
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
    if document.get('version') != version:
        raise exception.JournalError(
            path=path, reason=f'has version {document.get("version")}, '
            f'this release reads {version}')
    if document.get('checksum') != _checksum(
            _text(document.get('content'))):
        raise exception.JournalError(
            path=path, reason='does not match its checksum')
    return document['content']


def make_directory(path: str) -> None:
    """Make a directory and those above it, where they are missing.

    :raises OSError: if one cannot be made.
    """
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.abspath(path))
    make_directory(above)
    os.makedirs(path, mode=0o750, exist_ok=True)
    hand_over(path)


def hand_over(path: str) -> None:
    """Give what root has made to whom the directory around it belongs.

    An operator's command runs as root and cyborg-agent as its own user;
    both write here.

    :raises OSError: if it cannot be given.
    """
    if os.geteuid() == 0:
        owner = os.stat(os.path.dirname(os.path.abspath(path)))
        os.chown(path, owner.st_uid, owner.st_gid)


def leftovers(path: str) -> list[str]:
    """Files of writes that were never completed.

    Only for who keeps others from writing ``path`` meanwhile.
    """
    return glob.glob(f'{glob.escape(path)}.*{_NEW}')


def set_aside(path: str) -> str:
    """Move an unusable file out of the way, keeping it.

    :returns: its new path.
    :raises JournalError: if it cannot be moved.
    """
    for number in range(1, 1000):
        kept = f'{path}.unusable-{number}'
        if not os.path.exists(kept):
            break
    try:
        os.replace(path, kept)
    except OSError as error:
        raise exception.JournalError(
            path=path, reason=f'cannot be moved aside: {error}') from error
    return kept


def _text(content):
    """JSON with one line an item, for people to read and to compare.

    json.dumps, unlike json.dump, is not pure Python.
    """
    if isinstance(content, list):
        lines = [json.dumps(item, sort_keys=True) for item in content]
        return '[\n' + ',\n'.join(lines) + '\n]'
    if isinstance(content, dict):
        lines = [f'{json.dumps(key)}: {json.dumps(item, sort_keys=True)}'
                 for key, item in sorted(content.items())]
        return '{\n' + ',\n'.join(lines) + '\n}'
    return json.dumps(content)


def _checksum(text):
    return hashlib.sha256(text.encode()).hexdigest()


def _sync_directory(directory):
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
