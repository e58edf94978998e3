# SPDX-License-Identifier: Apache-2.0

"""The databases of the services, created once for each environment.

The migrations of all services take half a minute of a processor. The result
depends only on the release of a service and on MariaDB. So the first cloud of
a virtual environment keeps it there, as SQL, and later clouds load it.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable
from importlib import metadata

import pymysql

from minicloud_lib import mariadb
from minicloud_lib import settings as settings_module
from minicloud_lib import steps

_CLIENT = '/usr/bin/mariadb'
_DUMP = '/usr/bin/mariadb-dump'


def step(settings: settings_module.Settings, user: str, package: str,
         needs: tuple[str, ...], create: Callable[[], None]) -> steps.Step:
    """Return the step ``USER-schema`` that fills the databases of a user.

    :param package: the name of the package with the migrations.
    :param create: runs the migrations.
    """
    def act():
        path = _path(settings, user, package)
        if path.exists():
            _run(settings, user, [_CLIENT, f'--execute=source {path}'])
            return
        create()
        if os.access(sys.prefix, os.W_OK):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Other clouds read the file only when it is complete.
            new = path.with_suffix(f'.{os.getpid()}')
            _run(settings, user, [
                _DUMP, '--single-transaction', f'--result-file={new}',
                '--databases', *mariadb.DATABASES[user]])
            new.replace(path)

    return steps.Step(f'{user}-schema', needs, act)


def _path(settings, user, package):
    with pymysql.connect(**_login(settings, user)) as connection:
        version = connection.get_server_info()
    return pathlib.Path(
        sys.prefix, 'var', 'minicloud',
        f'{package}-{metadata.version(package)}-{version}.sql')


def _run(settings, user, command):
    """Run a client of MariaDB. Its options must come before the others."""
    program, *arguments = command
    login = _login(settings, user)
    steps.command(
        settings, f'{user}-schema',
        [program, '--no-defaults', '--protocol=tcp',
         *(f'--{name}={login[name]}' for name in ('host', 'port', 'user')),
         *arguments], {'MYSQL_PWD': login['password']})


def _login(settings, user):
    return {'host': settings_module.ADDRESS,
            'port': settings.port('mariadb'), 'user': user,
            'password': settings.password(user)}
