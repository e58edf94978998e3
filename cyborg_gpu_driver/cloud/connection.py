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

"""A client of a cloud's public APIs, for an administrator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from keystoneauth1 import exceptions as identity_exceptions
from keystoneauth1 import loading
from keystoneauth1.identity import base as identity
from openstack import config
from openstack import connection
from openstack import exceptions
from oslo_config import cfg

from cyborg_gpu_driver import exception

_ADMIN = 'admin'
"""The role to which Cyborg shows the objects of all projects."""
_VARIABLES = ('OS_CLOUD', 'OS_AUTH_URL')
_NOT_FOUND = 404
_TIMEOUT = 60
"""Timeout of a request in seconds, unless the cloud's configuration sets one.
"""
NOVA = '2.61'
"""Microversion of Nova's API. A flavor has its description (2.55) and extra
specs (2.61), and so has the flavor in a server (2.47)."""
_PAGE = 1000
"""The default of Nova's ``[api] max_limit``."""


def is_named(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment names a cloud."""
    return any(environment.get(name) for name in _VARIABLES)


class Cloud:
    """A client of one cloud; it sends no request when it is created.

    Several threads can use it, because keystoneauth's sessions are
    thread-safe.

    :param made: the connection that openstacksdk made.
    :param name: the name of the cloud in error messages.
    :ivar region: the user's region; None if the user names none.
    """

    def __init__(self, made: connection.Connection, name: str):
        self.name = name
        self.region = made.config.region_name or None
        self._connection = made

    @classmethod
    def named(cls, name: str | None = None) -> Cloud:
        """Return a cloud of ``clouds.yaml``.

        :param name: None for the cloud that the environment names
            (``OS_CLOUD``, or ``OS_AUTH_URL`` and the related variables).
        :raises CloudError: if there is no such cloud.
        """
        known = (name or os.environ.get('OS_CLOUD')
                 or os.environ.get('OS_AUTH_URL', ''))
        with _telling(known):
            return cls(connection.Connection(
                config=config.OpenStackConfig(
                    override_defaults={'api_timeout': _TIMEOUT}
                ).get_one(cloud=name)), known)

    @classmethod
    def of_section(cls, conf: cfg.ConfigOpts, section: str) -> Cloud:
        """Return the cloud that a section of a service's configuration names.

        :param section: a section with keystoneauth options that the service
            has registered, such as ``placement``.
        :raises CloudError: if the section does not say how to log in to
            Keystone.
        """
        name = f'of [{section}]'
        with _telling(name):
            auth = loading.load_auth_from_conf_options(conf, section)
            if not isinstance(auth, identity.BaseIdentityPlugin):
                raise exception.CloudError(
                    cloud=name, reason=f'[{section}] auth_type is not a '
                    'Keystone user')
            group = conf[section]
            session = loading.load_session_from_conf_options(
                conf, section, auth=auth,
                timeout=group.timeout or _TIMEOUT)
            return cls(connection.Connection(
                session=session, region_name=group.region_name,
                interface=group.valid_interfaces), name)

    def get(self, path: str, key: str, **query: str) -> list[dict[str, Any]]:
        """Return a complete list of Cyborg objects, of all projects.

        Cyborg silently restricts the list of a user who is not an
        administrator to the user's project. This method refuses such a list.

        :param path: below ``/v2``, such as ``/devices``.
        :param key: the key of the list in the response.
        :raises CloudError: if there is no such list.
        """
        self.check_admin()
        answer = self.ask('accelerator', path, **query)
        if answer is None:
            raise self.error(f'{path}: {_NOT_FOUND} Not Found')
        found = answer.get(key) if isinstance(answer, dict) else None
        if (not isinstance(found, list)
                or not all(isinstance(item, dict) for item in found)):
            raise self.error(f'{path} is not a list of {key}: the service at '
                             'this URL is not Cyborg')
        return found

    def ask(self, service: str, path: str, version: str | None = None,
            **query: str) -> Any:
        """Send a GET request to a service and return the parsed JSON.

        :param service: the name of its proxy in openstacksdk: ``accelerator``,
            ``baremetal``, ``compute``, ``identity``, ``placement``.
        :param path: below the service's endpoint.
        :param version: the microversion; None for the service's lowest.
        :returns: None if the object does not exist (404).
        :raises CloudError: if the service does not answer, or refuses.
        """
        with _telling(self.name):
            response = self._adapter(service).get(
                path, params=query, microversion=version)
            if response.status_code == _NOT_FOUND:
                return None
            exceptions.raise_from_response(response)
            return response.json()

    def change(self, service: str, method: str, path: str,
               body: Any = None, version: str | None = None,
               as_service: bool = False) -> Any:
        """Send any other request to a service and return the parsed JSON.

        :param method: ``POST``, ``PUT``, ``PATCH`` or ``DELETE``.
        :param body: a value that can be serialized to JSON.
        :param as_service: whether to send a service token, as Nova does in
            requests to Cyborg; the user's token is the service token, too.
        :returns: the response; None if it has no body.
        :raises CloudError: if the service does not answer, or refuses.
        """
        with _telling(self.name):
            response = self._adapter(service).request(
                path, method, json=body, microversion=version,
                headers={'X-Service-Token':
                         self._connection.session.get_token()}
                if as_service else {})
            exceptions.raise_from_response(response)
            return response.json() if response.content else None

    def has_service(self, service: str) -> bool:
        """Whether the cloud's catalog has a service.

        :param service: as for :meth:`ask`.
        :raises CloudError: if the user cannot log in.
        """
        with _telling(self.name):
            try:
                return self._connection.config.get_session_client(
                    service).get_endpoint() is not None
            except identity_exceptions.CatalogException:
                return False

    def _adapter(self, service):
        return getattr(self._connection, service)

    def error(self, reason: object) -> exception.CloudError:
        """Return an error about this cloud, for the caller to raise."""
        return exception.CloudError(cloud=self.name, reason=reason)

    @property
    def user(self) -> str:
        """Name of the user; empty if the user does not log in to Keystone.

        :raises CloudError: if the user cannot log in.
        """
        session = self._connection.session
        with _telling(self.name):
            if not isinstance(session.auth, identity.BaseIdentityPlugin):
                return ''
            return session.auth.get_access(session).username or ''

    def has_role(self, name: str) -> bool:
        """Whether the user has a role; True if that is unknown.

        Only Keystone authentication plugins know roles.

        :raises CloudError: if the user cannot log in.
        """
        session = self._connection.session
        with _telling(self.name):
            return (not isinstance(session.auth, identity.BaseIdentityPlugin)
                    or name in session.auth.get_access(session).role_names)

    def check_admin(self) -> None:
        """Make sure that Cyborg shows the objects of all projects.

        :raises CloudError: if Cyborg shows this user only a part of them.
        """
        if not self.has_role(_ADMIN):
            raise self.error(
                'Cyborg shows the accelerator requests of all projects only '
                f'to the role {_ADMIN}, which this user does not have')


@contextlib.contextmanager
def _telling(name):
    """Turn every exception into a CloudError that names the cloud.

    keystoneauth raises bare exceptions if credentials are incomplete.
    openstacksdk raises exceptions of any class if clouds.yaml is malformed.
    """
    try:
        yield
    except exception.CloudError:
        raise
    except Exception as error:
        raise exception.CloudError(
            cloud=name, reason=str(error) or repr(error)) from error


@contextlib.contextmanager
def understanding(cloud: Cloud, service: str, what: str
                  ) -> Iterator[None]:
    """Report a response that does not have the expected structure.

    :raises CloudError: instead of the exception, such as KeyError, that such
        a response causes.
    """
    try:
        yield
    except exception.GpuDriverError:
        raise
    except (KeyError, IndexError, TypeError, AttributeError,
            ValueError) as error:
        raise cloud.error(
            f'{what} in {service} cannot be parsed, or the service at this '
            f'URL is not {service}: {error!r}') from error


def complete(cloud: Cloud, path: str, key: str, **query: str
             ) -> list[dict[str, Any]]:
    """Return all items of a Keystone list.

    Keystone can limit its lists, which have no further pages then.

    :param path: such as ``/limits``.
    :param key: the key of the list in the response.
    :raises CloudError: if there is no such list, or Keystone does not list
        all items.
    """
    answer = cloud.ask('identity', path, **query)
    with understanding(cloud, 'Keystone', path):
        if answer.get('truncated'):
            raise cloud.error(f'Keystone lists only some {key} (list_limit in '
                              'keystone.conf)')
        return list(answer[key])


def reason(error: exception.CloudError) -> str:
    """Return the reason of an error, without the name of the cloud."""
    return str(error.kwargs['reason'])


def pages(cloud: Cloud, path: str, key: str, **query: str
          ) -> list[dict[str, Any]]:
    """Return all items of a Nova list, from all its pages.

    :param path: such as ``/servers``.
    :param key: the key of the list in the response.
    :raises CloudError: if there is no such list.
    """
    return list(each(cloud, path, key, **query))


def each(cloud: Cloud, path: str, key: str, **query: str
         ) -> Iterator[dict[str, Any]]:
    """Like :func:`pages`, but keep only one page at a time in memory."""
    while True:
        answer = cloud.ask('compute', path, NOVA,
                           **{'limit': str(_PAGE), **query})
        with understanding(cloud, 'Nova', path):
            page = [{**item, 'id': item['id']} for item in answer[key]]
            more = f'{key}_links' in answer
        yield from page
        if not page or not more:
            return
        query['marker'] = page[-1]['id']
