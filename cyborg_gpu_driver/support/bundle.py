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

"""Collects the parts within their deadlines, and writes the archive."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.support import parts as parts_module

MODE = 0o600


@dataclasses.dataclass(frozen=True)
class Part:
    """The result of one part."""

    content: Any = None
    """A document for JSON, or a list of lines."""
    problem: str = ''
    """Why the content is missing or incomplete."""
    failed: bool = False
    """Whether the problem is a failure; a part can also not apply."""


def gather(make: Mapping[str, Callable[[], Any]], seconds: float
           ) -> dict[str, Part]:
    """Make each part, even if another part fails.

    :param make: functions that make the parts, by name.
    :param seconds: how long a part may take. A part that hangs is left behind
        in its thread.
    """
    return {name: _attempt(name, function, seconds)
            for name, function in make.items()}


def _attempt(name: str, function: Callable[[], Any], seconds: float) -> Part:
    found: list[Part] = []

    def work() -> None:
        try:
            found.append(Part(function()))
        except parts_module.LeftOut as error:
            found.append(Part(problem=str(error)))
        except (Exception, SystemExit) as error:
            # The bundle exists to report what is broken on this host.
            found.append(Part(problem=f'{type(error).__name__}: {error}',
                              failed=True))
    thread = threading.Thread(target=work, name=f'bundle-{name}', daemon=True)
    thread.start()
    thread.join(seconds)
    if found:
        return found[0]
    return Part(problem=f'it took longer than {seconds:g} s', failed=True)


def archive(parts: Mapping[str, Part], directory: str, notes: Mapping[str, Any]
            ) -> bytes:
    """Return the parts as a compressed tar archive.

    :param directory: the directory of the files in the archive.
    :param notes: further entries of the index.
    """
    index = {**notes, 'parts': {
        name: {'file': part.content is not None and _file(name, part),
               'problem': part.problem or None, 'failed': part.failed}
        for name, part in parts.items()}}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode='w:gz') as tar:
        _add(tar, f'{directory}/index.json', _json(index))
        for name, part in parts.items():
            if part.content is not None:
                _add(tar, f'{directory}/{_file(name, part)}',
                     '\n'.join(part.content) + '\n'
                     if isinstance(part.content, list)
                     else _json(part.content))
    return stream.getvalue()


def _file(name, part):
    return f'{name}.txt' if isinstance(part.content, list) else f'{name}.json'


def _json(document):
    return json.dumps(document, indent=1, default=str) + '\n'


def _add(tar, name, text):
    data = text.encode('utf-8', 'replace')
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), MODE
    member.mtime = int(time.time())
    tar.addfile(member, io.BytesIO(data))


def check_path(path: str, force: bool) -> None:
    """Check the path of the archive before anything is collected.

    :raises InvalidValue: if ``path`` exists and may not or cannot be
        replaced.
    """
    if not os.path.lexists(path):
        return
    if not force:
        raise exception.InvalidValue(
            what='--output', value=path,
            expected='it exists; give another path, or replace it with '
                     '--force')
    if os.path.islink(path) or not os.path.isfile(path):
        raise exception.InvalidValue(
            what='--output', value=path,
            expected='only a regular file can be replaced')


def write(path: str, data: bytes, force: bool) -> None:
    """Write a file that only its owner may read.

    :raises InvalidValue: as :func:`check_path`, or if it cannot be written.
    """
    check_path(path, force)
    # Do not open ``path`` itself: open() would follow a link that was made
    # in the meantime.
    beside = f'{path}.{os.getpid()}.partial'
    try:
        descriptor = os.open(
            beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW,
            MODE)
        try:
            with open(descriptor, 'wb') as stream:
                os.fchmod(descriptor, MODE)
                stream.write(data)
            if force:
                os.replace(beside, path)
            else:
                os.link(beside, path)
                os.unlink(beside)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        raise exception.InvalidValue(
            what='--output', value=path,
            expected=f'it cannot be written: {error.strerror}') from error
