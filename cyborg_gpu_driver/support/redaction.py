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

"""Removes secrets, host names and identities from data that is sent to others.

Pure: the functions take texts and documents, and return them without secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from oslo_utils import strutils

MASK = '***'
HOST = 'this-host'
_UUID = '[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}'
_LEAST = 4
"""Least characters of a secret: a shorter one matches unrelated texts."""
_SECRET_NAME = re.compile('pass|secret|token|credential|private|(^|_)key$'
                          '|_key_|transport_url|connection', re.IGNORECASE)
_PUBLIC_NAME = re.compile('^send_|_(roles|required|time|debug|trace)$',
                          re.IGNORECASE)
"""Names of switches, times and roles, such as service_token_roles of
keystonemiddleware. Their values, such as "service" and "True", are words of
any log."""
_USER_INFO = re.compile(r'(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)'
                        r'(?P<user>[^\s/@:"\']*):[^\s"\'<>]*@')
# Tokens of Keystone: X-Auth-Token and Authorization headers in a log.
_HEADER = re.compile(r'(?i)((?:x-auth-token|x-subject-token|x-service-token'
                     r'|authorization)["\']?\s*[:=]\s*["\']?)'
                     r'(?:bearer |basic )?[^\s"\',]+')


def is_secret(name: str) -> bool:
    """Whether an option of this name may hold a secret."""
    return bool(_SECRET_NAME.search(name)
                and not _PUBLIC_NAME.search(name))


def of_option(name: str, values: Iterable[str]) -> Iterator[str]:
    """Yield the secrets in the values of an option, as they are written.

    :param name: the name of the option. If :func:`is_secret`, each value is
        a secret as a whole.
    """
    for value in values:
        yield from _passwords(value)
        if is_secret(name):
            yield value


def _passwords(value: str) -> Iterator[str]:
    """Yield the passwords in a URL, for each host as in transport_url."""
    _, _, rest = value.partition('://')
    for part in rest.split(','):
        password = part.rpartition('@')[0].partition(':')[2]
        if password:
            yield password


class Redactor:
    """Replaces known secrets and texts that look like secrets.

    :param secrets: texts that must not occur.
    :param hosts: names of the host to replace; if empty, names are kept.
    """

    def __init__(self, secrets: Iterable[str], hosts: Iterable[str] = ()):
        self._secrets = _pattern(secrets)
        self._hosts = _pattern(hosts, words=True)

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        if self._secrets is not None:
            text = self._secrets.sub(MASK, text)
        text = _USER_INFO.sub(rf'\g<scheme>\g<user>:{MASK}@', text)
        text = _HEADER.sub(rf'\g<1>{MASK}', text)
        text = strutils.mask_password(text, MASK)
        if self._hosts is not None:
            text = self._hosts.sub(HOST, text)
        return text

    def of(self, value: Any) -> Any:
        """Return a document for JSON without secrets."""
        return _mapped(value, self.text)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(item, change)
                for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(item, change) for item in value]
    return value


def _pattern(texts: Iterable[str], words: bool = False
             ) -> re.Pattern[str] | None:
    """Return a pattern that finds any of the texts, the longest first."""
    least = 1 if words else _LEAST
    found = sorted({text for text in texts if len(text) >= least},
                   key=lambda text: (-len(text), text))
    if not found:
        return None
    pattern = '|'.join(map(re.escape, found))
    return re.compile(rf'(?<![A-Za-z0-9-])(?:{pattern})(?![A-Za-z0-9-])'
                      if words
                      else pattern)


def anonymise(document: Any) -> Any:
    """Return the document without identities of boards.

    Each UUID and serial number is replaced by a made-up one. Equal values get
    the same replacement, so that references remain valid.

    :param document: a value that :func:`json.dumps` accepts.
    """
    words = {serial: f'SERIAL-{number}' for number, serial
             in enumerate(dict.fromkeys(_serials(document)), 1)}
    uuids: dict[str, int] = {}
    # The longest first, because one may be the beginning of another.
    pattern = re.compile('|'.join(
        [f'(?P<uuid>{_UUID})'] + [
            rf'(?<![0-9A-Za-z]){re.escape(serial)}(?![0-9A-Za-z])'
            for serial in sorted(words, key=len, reverse=True)]))

    def other(match):
        if match['uuid']:
            number = uuids.setdefault(match['uuid'].lower(), len(uuids) + 1)
            return f'00000000-0000-4000-8000-{number:012x}'
        return words[match.group()]

    return _mapped(document, lambda text: pattern.sub(other, text))


def _serials(value):
    """Return the values of the keys "serial", in order."""
    found = []
    if isinstance(value, dict):
        if value.get('serial') and isinstance(value['serial'], str):
            found.append(value['serial'])
        value = list(value.values())
    if isinstance(value, list):
        found += [serial for item in value for serial in _serials(item)]
    return found
