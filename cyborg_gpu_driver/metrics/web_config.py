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

"""The web configuration file, in the format that Prometheus' exporters share.

See "Web configuration" of prometheus/exporter-toolkit. An option that this
exporter does not support is refused, so that no operator relies on protection
that does not exist. A duplicate key is refused as well, as in that toolkit.
"""

from __future__ import annotations

import dataclasses
import os
import re
import ssl
from collections.abc import Mapping
from typing import Any

import yaml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml

_TLS = 'tls_server_config'
_USERS = 'basic_auth_users'
_FILES = ('cert_file', 'key_file', 'client_ca_file')
_CLIENT_AUTH = {'NoClientCert': ssl.CERT_NONE,
                'VerifyClientCertIfGiven': ssl.CERT_OPTIONAL,
                'RequireAndVerifyClientCert': ssl.CERT_REQUIRED}
_VERSIONS = {'TLS12': ssl.TLSVersion.TLSv1_2, 'TLS13': ssl.TLSVersion.TLSv1_3}
_BCRYPT = re.compile(
    r'\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}', re.ASCII)
"""The cost is from 4 to 31 (OpenBSD's bcrypt.c, BCRYPT_MINLOGROUNDS)."""
_SCHEMA = schema.nullable(schema.mapping({}, {
    _TLS: schema.nullable(schema.mapping(
        dict.fromkeys(('cert_file', 'key_file'),
                      {**schema.TEXT, 'minLength': 1}),
        {'client_ca_file': schema.TEXT,
         'client_auth_type': {'enum': list(_CLIENT_AUTH)},
         'min_version': {'enum': list(_VERSIONS)}})),
    _USERS: {'type': ['object', 'null']}}))
"""The schema does not check the values of the users: a message shows the
wrong value, which may be a password that was not hashed."""


@dataclasses.dataclass(frozen=True)
class Tls:
    """``tls_server_config``."""

    cert_file: str
    key_file: str
    client_ca_file: str = ''
    client_auth_type: str = 'NoClientCert'
    min_version: str = 'TLS12'

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the section names."""
        return tuple(filter(None, (self.cert_file, self.key_file,
                                   self.client_ca_file)))

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for connections.

        :raises OSError: if a file cannot be read, or has the wrong content
            (ssl.SSLError).
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[self.min_version]
        context.load_cert_chain(self.cert_file, self.key_file)
        if self.client_ca_file:
            context.load_verify_locations(self.client_ca_file)
        context.verify_mode = _CLIENT_AUTH[self.client_auth_type]
        return context


@dataclasses.dataclass(frozen=True)
class WebConfig:
    """The content of the file; without a file, neither TLS nor users."""

    tls: Tls | None = None
    users: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """User to bcrypt hash."""

    @property
    def protects(self) -> bool:
        """Whether the file requires TLS or users."""
        return self.tls is not None or bool(self.users)


_PLACE = schema.Place('web configuration')


def load(path: str) -> WebConfig:
    """Read a web configuration file.

    :raises InvalidValue: if the file cannot be read or is not a web
        configuration file; the error names what is wrong.
    """
    try:
        with open(path, encoding='utf-8') as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(path, f'cannot be read: {error}') from error
    try:
        return parse(layout_yaml.plain(text, _PLACE), path)
    except exception.DocumentError as error:
        raise _wrong(path, _without_text(error)) from error


def _without_text(error: exception.DocumentError) -> str:
    """Return the error without the line, which may have a password.

    PyYAML quotes the line in its message.
    """
    cause = error.__cause__
    if not isinstance(cause, yaml.MarkedYAMLError):
        return str(error)
    mark = cause.problem_mark or cause.context_mark
    line = f'line {mark.line + 1}: ' if mark else ''
    return f'not YAML: {line}{cause.problem}'


def parse(content: Any, path: str) -> WebConfig:
    """Return the web configuration in a file's content.

    :param path: path of the file; other files are named relative to it.
    :raises InvalidValue: as :func:`load`.
    :raises DocumentError: if the content does not follow the format.
    """
    schema.check(content, _SCHEMA, _PLACE)
    content = content or {}
    users = content.get(_USERS) or {}
    for name, digest in users.items():
        if not isinstance(digest, str) or not _BCRYPT.fullmatch(digest):
            raise _wrong(path, f'{_USERS}: give {name!r} a bcrypt hash, as '
                         '"htpasswd -nBC 10 USER" prints it')
    return WebConfig(_tls(content.get(_TLS), path), users)


def _tls(content: Mapping[str, str] | None, path: str) -> Tls | None:
    if content is None:
        return None
    directory = os.path.dirname(os.path.abspath(path))
    tls = Tls(**{name: os.path.join(directory, value)
                 if name in _FILES and value else value
                 for name, value in content.items()})
    if bool(tls.client_ca_file) != (tls.client_auth_type != 'NoClientCert'):
        raise _wrong(path, f'{_TLS}: set both client_ca_file and '
                     'client_auth_type, or neither')
    return tls


def _wrong(path: str, reason: str) -> exception.InvalidValue:
    return exception.InvalidValue(what='--web-config', value=path,
                                  expected=reason)
