# SPDX-License-Identifier: Apache-2.0

"""Keystone, with fast and weak password hashes."""

from __future__ import annotations

import base64
import os

from minicloud_lib import common
from minicloud_lib import inifile
from minicloud_lib import schemas
from minicloud_lib import settings as settings_module
from minicloud_lib import steps
from minicloud_lib import uwsgi

ADMIN = 'admin'
_REPOSITORIES = ('fernet', 'credential')


def parts(settings: settings_module.Settings) -> list:
    manage = [steps.binary('keystone-manage'), '--config-file',
              str(settings.etc('keystone', 'keystone.conf'))]
    url = settings.url('keystone') + '/v3'

    def bootstrap():
        steps.command(
            settings, 'keystone-bootstrap',
            [*manage, 'bootstrap', '--bootstrap-region-id', common.REGION,
             *(f'--bootstrap-{interface}-url={url}'
               for interface in ('public', 'internal', 'admin'))],
            {'OS_BOOTSTRAP_PASSWORD': settings.password(ADMIN)})

    return [
        steps.Step('keystone-files', (), lambda: _configure(settings)),
        schemas.step(settings, 'keystone', 'keystone',
                     ('keystone-files', 'mariadb'),
                     lambda: steps.command(settings, 'keystone-schema',
                                           [*manage, 'db_sync'])),
        steps.Step('keystone-bootstrap', ('keystone-schema',), bootstrap),
        uwsgi.service(
            settings, 'keystone', 'keystone', 'keystone.wsgi.api',
            ('keystone-bootstrap',),
            {'OS_KEYSTONE_CONFIG_DIR': str(settings.etc('keystone'))},
            path='/v3'),
    ]


def _configure(settings):
    repositories = {name: settings.etc('keystone', name)
                    for name in _REPOSITORIES}
    for path in repositories.values():
        _make_keys(path)
    tokens = {'key_repository': repositories['fernet']}
    inifile.write(settings.etc('keystone', 'keystone.conf'), inifile.merge(
        common.sections(settings, 'keystone'),
        {'database': {'connection': common.database_url(
            settings, 'keystone', 'keystone')},
         'fernet_tokens': tokens, 'fernet_receipts': tokens,
         'credential': {'key_repository': repositories['credential']},
         'cache': {'backend': 'dogpile.cache.memory'},
         # The minimum that bcrypt accepts.
         'identity': {'password_hash_rounds': 4}}))


def _make_keys(path):
    """Create the same key repository as ``keystone-manage fernet_setup``.

    It contains the staged key 0 and the primary key 1.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ('0', '1'):
        (path / name).touch(mode=0o600)
        (path / name).write_bytes(base64.urlsafe_b64encode(os.urandom(32)))
