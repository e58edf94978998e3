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

See "Web configuration" of prometheus/exporter-toolkit. What of it is not
served here is refused, so that nobody relies on protection that is not there.
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

_TLS = 'tls_server_config'
_USERS = 'basic_auth_users'
_FILES = ('cert_file', 'key_file', 'client_ca_file')
_CLIENT_AUTH = {'NoClientCert': ssl.CERT_NONE,
                'VerifyClientCertIfGiven': ssl.CERT_OPTIONAL,
                'RequireAndVerifyClientCert': ssl.CERT_REQUIRED}
_VERSIONS = {'TLS12': ssl.TLSVersion.TLSv1_2, 'TLS13': ssl.TLSVersion.TLSv1_3}
_BCRYPT = re.compile(r'\$2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}', re.ASCII)


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
        """The files that it names."""
        return tuple(filter(None, (self.cert_file, self.key_file,
                                   self.client_ca_file)))

    def context(self) -> ssl.SSLContext:
        """What wraps connections.

        :raises OSError: if a file cannot be read, or is not what it should
            be (ssl.SSLError).
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
    """One file; without one, neither TLS nor users."""

    tls: Tls | None = None
    users: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """User to bcrypt hash."""


def load(path: str) -> WebConfig:
    """Read a web configuration file.

    :raises InvalidValue: if it cannot be read or is not one, naming what is
        wrong.
    """
    try:
        with open(path, encoding='utf-8') as stream:
            content = yaml.safe_load(stream)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _wrong(path, f'cannot be read: {error}') from error
    return parse(content, path)


def parse(content: Any, path: str) -> WebConfig:
    """What a file says.

    :param path: of the file; other files are named relative to it.
    :raises InvalidValue: as :func:`load`.
    """
    content = _mapping(content or {}, 'the file', path)
    _check_names(content, (_TLS, _USERS), '', path)
    users = _mapping(content.get(_USERS) or {}, _USERS, path)
    for name, digest in users.items():
        if not (isinstance(name, str) and isinstance(digest, str)
                and _BCRYPT.fullmatch(digest)):
            raise _wrong(path, f'{_USERS}: give {name!r} a bcrypt hash, as '
                         '"htpasswd -nBC 10 USER" prints it')
    return WebConfig(_tls(content.get(_TLS), path), users)


def _tls(content: Any, path: str) -> Tls | None:
    if not content:
        return None
    found = dict(_mapping(content, _TLS, path))
    names = [field.name for field in dataclasses.fields(Tls)]
    _check_names(found, names, f'{_TLS}: ', path)
    for name in ('cert_file', 'key_file'):
        if not found.get(name):
            raise _wrong(path, f'{_TLS}: {name} is missing')
    for name, value in found.items():
        if not isinstance(value, str):
            raise _wrong(path, f'{_TLS}: {name} is not text')
    for name, allowed in (('client_auth_type', _CLIENT_AUTH),
                          ('min_version', _VERSIONS)):
        if name in found and found[name] not in allowed:
            raise _wrong(path, f'{_TLS}: {name} is {found[name]!r}, expected '
                         + ' or '.join(allowed))
    directory = os.path.dirname(os.path.abspath(path))
    tls = Tls(**{name: os.path.join(directory, value)
                 if name in _FILES and value else value
                 for name, value in found.items()})
    if bool(tls.client_ca_file) != (tls.client_auth_type != 'NoClientCert'):
        raise _wrong(path, f'{_TLS}: client_ca_file and client_auth_type '
                     'need each other')
    return tls


def _mapping(content: Any, what: str, path: str) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise _wrong(path, f'{what} is not a mapping')
    return content


def _check_names(content: Mapping[Any, Any], known: Any, where: str,
                 path: str) -> None:
    for name in content:
        if name not in known:
            raise _wrong(path, f'{where}{name!r} is not served here, only '
                         + ', '.join(known))


def _wrong(path: str, reason: str) -> exception.InvalidValue:
    return exception.InvalidValue(what='--web-config', value=path,
                                  expected=reason)
