# SPDX-License-Identifier: Apache-2.0

"""The files that clients read: ``clouds.yaml`` and ``openrc``."""

from __future__ import annotations

import pathlib

import yaml
from openstack import config
from openstack import connection

from minicloud_lib import common
from minicloud_lib import settings as settings_module

ADMIN = 'admin'
SERVICES = ('cyborg', 'glance', 'ironic', 'nova', 'placement')
"""The users of the project ``service``."""
USERS = {'user1': 'project1', 'user2': 'project2'}
"""The users without privileges, with the project of each."""
_TIMEOUT = 300
"""Seconds after which a client of this cloud gives up on a request."""

_OPENRC = """\
# Source this file to act as a user of the cloud: . {directory}/openrc [USER]
export OS_CLIENT_CONFIG_FILE={clouds}
export OS_CLOUD=${{1:-{admin}}}
"""


def path(settings: settings_module.Settings) -> pathlib.Path:
    return settings.directory / 'clouds.yaml'


def write(settings: settings_module.Settings) -> None:
    """Write both files. ``clouds.yaml`` has a separate cloud for each user."""
    projects = {ADMIN: ADMIN, **USERS,
                **dict.fromkeys(SERVICES, common.SERVICE_PROJECT)}
    clouds = {user: _cloud(settings, user, project)
              for user, project in projects.items()}
    clouds_path = path(settings)
    clouds_path.touch(mode=0o600)
    clouds_path.write_text(yaml.safe_dump({'clouds': clouds}),
                           encoding='utf-8')
    (settings.directory / 'openrc').write_text(
        _OPENRC.format(directory=settings.directory, clouds=clouds_path,
                       admin=ADMIN), encoding='utf-8')


def connect(settings: settings_module.Settings, user: str
            ) -> connection.Connection:
    """Return a connection to this cloud as one of its users."""
    clouds = config.OpenStackConfig(config_files=[str(path(settings))],
                                    load_envvars=False)
    return connection.Connection(config=clouds.get_one(cloud=user))


def _cloud(settings, user, project):
    return {
        'region_name': common.REGION,
        'api_timeout': _TIMEOUT,
        'auth': {'auth_url': settings.url('keystone') + '/v3',
                 'username': user, 'password': settings.password(user),
                 'project_name': project,
                 'user_domain_name': common.DOMAIN,
                 'project_domain_name': common.DOMAIN}}
