# SPDX-License-Identifier: Apache-2.0

"""Sections that the configuration files of all services have."""

from __future__ import annotations

from minicloud_lib import inifile
from minicloud_lib import probes
from minicloud_lib import settings as settings_module

REGION = 'RegionOne'
SERVICE_PROJECT = 'service'
DOMAIN = 'Default'


def database_url(settings: settings_module.Settings, user: str,
                 database: str) -> str:
    return (f'mysql+pymysql://{user}:{settings.password(user)}@'
            f'{settings_module.ADDRESS}:{settings.port("mariadb")}/'
            f'{database}?charset=utf8mb4')


def transport_url(settings: settings_module.Settings) -> str:
    user = probes.broker_user()
    return (f'rabbit://{user}:{settings.password(user)}@'
            f'{settings_module.ADDRESS}:{settings.port("rabbitmq")}/')


def login(settings: settings_module.Settings, user: str
          ) -> dict[str, object]:
    """Return the options with which a service logs in to keystone."""
    return {'auth_type': 'password',
            'auth_url': settings.url('keystone') + '/v3',
            'username': user, 'password': settings.password(user),
            'project_name': SERVICE_PROJECT, 'user_domain_name': DOMAIN,
            'project_domain_name': DOMAIN, 'region_name': REGION}


def sections(settings: settings_module.Settings, name: str,
             user: str | None = None) -> inifile.Sections:
    """Return the sections that every service has.

    :param name: the directory of the service below ``data``.
    :param user: the user that checks the tokens of clients, None for a
        service without an API.
    """
    common: dict[str, dict[str, object]] = {
        'DEFAULT': {'state_path': settings.data(name),
                    'use_stderr': True,
                    'transport_url': transport_url(settings)},
        'oslo_concurrency': {'lock_path': settings.data(name, 'locks')},
        'oslo_messaging_notifications': {'driver': 'noop'},
    }
    if user is not None:
        common['keystone_authtoken'] = {
            **login(settings, user),
            'www_authenticate_uri': settings.url('keystone') + '/v3',
            'interface': 'public', 'service_token_roles': 'service',
            'service_token_roles_required': True}
    return common
