# SPDX-License-Identifier: Apache-2.0

"""A client of a cloud's public APIs, for an administrator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import TypeVar

from keystoneauth1 import exceptions as identity_exceptions
from keystoneauth1 import loading
from keystoneauth1.identity import base as identity
from openstack import config
from openstack import connection
from openstack import exceptions
from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf

_ADMIN = 'admin'
"""The role to which Cyborg shows the objects of all projects."""
_VARIABLES = ('OS_CLOUD', 'OS_AUTH_URL')
_Found = TypeVar('_Found')
_TIMEOUT = 60
"""Timeout of a request in seconds, unless the cloud's configuration sets one.
"""
_VERSIONS = {'placement': '1.36'}
"""The default microversions. That of Placement is the first with every
parameter of Nova's query for candidates. It has ``reserved`` equal to
``total`` (1.26), all providers of a tree (1.29), the candidates of one tree
(1.31), and the usages of a project (1.9)."""
_NAMES = {'accelerator': 'Cyborg', 'baremetal': 'Ironic', 'compute': 'Nova',
          'identity': 'Keystone', 'placement': 'Placement'}


def is_named(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment names a cloud."""
    return any(environment.get(name) for name in _VARIABLES)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register ``[gpu_cloud]``, unless it is registered."""
    for register in (loading.register_auth_conf_options,
                     loading.register_session_conf_options,
                     loading.register_adapter_conf_options):
        register(conf, gpu_conf.CLOUD)


class Cloud:
    """A client of one cloud; it sends no request when it is created.

    Several threads can use it, because keystoneauth's sessions are
    thread-safe. The methods of :attr:`sdk` raise openstacksdk's exceptions;
    commands and agents use them inside :meth:`errors`.

    :param name: the name of the cloud in error messages.
    :ivar region: the user's region; None if the user names none.
    """

    def __init__(self, sdk: connection.Connection, name: str):
        self.name = name
        self.region = sdk.config.region_name or None
        self.sdk = sdk

    @classmethod
    def named(cls, name: str | None = None) -> Cloud:
        """Return a cloud of ``clouds.yaml``.

        :param name: None for the cloud that the environment names
            (``OS_CLOUD``, or ``OS_AUTH_URL`` and the related variables).
        """
        known = (name or os.environ.get('OS_CLOUD')
                 or os.environ.get('OS_AUTH_URL', ''))
        with _login(known):
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
        with _login(name):
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

    def ask(self, service: str, path: str, version: str | None = None,
            **query: str) -> Any:
        """Send a GET request that openstacksdk has no method for.

        :param service: the name of its proxy in openstacksdk: ``accelerator``,
            ``baremetal``, ``compute``, ``identity``, ``placement``.
        :param version: the microversion; by default the service's lowest, but
            for Placement :data:`_VERSIONS`.
        :returns: the parsed JSON; None if the object does not exist (404).
        """
        try:
            return self.change(service, 'GET', path, version=version,
                               params=query)
        except exception.CloudError as error:
            if isinstance(error.__cause__, exceptions.NotFoundException):
                return None
            raise

    def change(self, service: str, method: str, path: str,
               body: Any = None, version: str | None = None,
               as_service: bool = False, **more: Any) -> Any:
        """Send another request that openstacksdk has no method for.

        :param as_service: whether to send a service token, as Nova does in
            requests to Cyborg; the user's token is the service token, too.
        """
        with self.errors():
            response = getattr(self.sdk, service).request(
                path, method, json=body,
                microversion=version or _VERSIONS.get(service),
                headers={'X-Service-Token': self.sdk.session.get_token()}
                if as_service else {}, **more)
            exceptions.raise_from_response(response)
            return response.json() if response.content else None

    def has_service(self, service: str) -> bool:
        """Whether the cloud's catalog has a service."""
        try:
            return self.sdk.config.get_session_client(
                service).get_endpoint() is not None
        except identity_exceptions.CatalogException:
            return False

    def attempt(self, read: Callable[..., _Found], *arguments: Any,
                complain: Callable[[str], None]) -> _Found | None:
        """Return what a function reads; complain and return None if it fails.
        """
        try:
            with self.errors():
                return read(*arguments)
        except exception.CloudError as error:
            complain(str(error))
            return None

    def error(self, reason: object) -> exception.CloudError:
        """Return an error about this cloud, for the caller to raise."""
        return exception.CloudError(cloud=self.name, reason=reason)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the failures of the services into errors that name them.

        :raises CloudError: instead of an exception of openstacksdk or
            keystoneauth, or of code that an unexpected answer causes.
        """
        try:
            yield
        except exception.GpuDriverError:
            raise
        except (exceptions.SDKException,
                identity_exceptions.ClientException) as error:
            raise self.error(self._failure(error)) from error
        except (KeyError, IndexError, TypeError, AttributeError,
                ValueError) as error:
            raise self.error(
                'an answer cannot be parsed, or the URL of a service in the '
                f'catalog is that of another service: {error!r}') from error
        except Exception as error:
            # keystoneauth raises bare ones if credentials are incomplete.
            if type(error) is not Exception:
                raise
            raise self.error(error) from error

    def _failure(self, error: Exception) -> str:
        """Say which service failed, how, and what to do."""
        service, text = self._service(str(error)), str(error) or repr(error)
        status = (getattr(error, 'status_code', None)
                  or getattr(error, 'http_status', None) or 0)
        if status and str(status) not in text:
            text = f'{status}: {text}'
        if service:
            text = f'{service}: {text}'
        if isinstance(error, exceptions.DuplicateResource):
            return f'{text} Give the UUID of one'
        if status == 403:
            # The text has the URL, which is none of a tenant's business.
            return (f'{service or "the service"} refuses it to this user '
                    f'(403); only a user with the role {_ADMIN} may do it')
        if status == 401:
            return f'{text}; check the credentials'
        if status >= 500 or isinstance(error,
                                       identity_exceptions.ConnectionError):
            return f'{text}; see whether {service or "it"} runs, and its log'
        return text

    def _service(self, text: str) -> str:
        """The name of the service whose URL is in a text; empty if none is.
        """
        try:
            catalog = self.access.service_catalog.catalog
        except Exception:
            # Without a token there is no catalog: the login failed.
            return _NAMES['identity']
        found = {endpoint['url'].rstrip('/'): entry['type']
                 for entry in catalog for endpoint in entry['endpoints']
                 if endpoint['url'].rstrip('/') in text}
        kind = found[max(found, key=len)] if found else ''
        return _NAMES.get(kind, kind)

    @property
    def access(self) -> Any:
        """What Keystone has given the user: roles, project and catalog."""
        return self.sdk.session.auth.get_access(self.sdk.session)

    @property
    def _has_access(self) -> bool:
        return isinstance(self.sdk.session.auth, identity.BaseIdentityPlugin)

    @property
    def user(self) -> str:
        """Name of the user; empty if the user does not log in to Keystone."""
        return (self.access.username or '') if self._has_access else ''

    def has_role(self, name: str = _ADMIN) -> bool:
        """Whether the user has a role; True if that is unknown."""
        return not self._has_access or name in self.access.role_names

    def check_admin(self) -> None:
        """Make sure that Cyborg shows the objects of all projects."""
        if not self.has_role():
            raise self.error(
                'Cyborg shows the accelerator requests of all projects only '
                f'to the role {_ADMIN}, which this user does not have')


@contextlib.contextmanager
def _login(name: str) -> Iterator[None]:
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


def reason(error: exception.CloudError) -> str:
    """Return the reason of an error, without the name of the cloud."""
    return str(error.kwargs['reason'])
