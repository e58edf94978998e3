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

"""Removes secrets from data that is sent to others.

Pure: the functions take texts and documents, and return them without secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from oslo_utils import strutils

MASK = '***'
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
    """

    def __init__(self, secrets: Iterable[str]):
        # The longest first, because one may be the beginning of another.
        known = sorted({text for text in secrets if len(text) >= _LEAST},
                       key=len, reverse=True)
        self._secrets = known and re.compile('|'.join(map(re.escape, known)))

    def of(self, value: Any) -> Any:
        """Return a document for JSON without secrets."""
        if isinstance(value, str):
            return '\n'.join(map(self._line, value.split('\n')))
        if isinstance(value, dict):
            return {self.of(key): self.of(item)
                    for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.of(item) for item in value]
        return value

    def _line(self, text: str) -> str:
        if self._secrets:
            text = self._secrets.sub(MASK, text)
        text = _USER_INFO.sub(rf'\g<scheme>\g<user>:{MASK}@', text)
        text = _HEADER.sub(rf'\g<1>{MASK}', text)
        return strutils.mask_password(text, MASK)
