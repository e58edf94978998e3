# SPDX-License-Identifier: Apache-2.0

"""The distribution's MariaDB, with separate files and a separate port."""

from __future__ import annotations

import os
import pathlib
import shutil

from minicloud_lib import probes
from minicloud_lib import settings as settings_module
from minicloud_lib import steps

DATABASES = {'keystone': ('keystone',), 'placement': ('placement',),
             'nova': ('nova_api', 'nova_cell0', 'nova_cell1'),
             'cyborg': ('cyborg',), 'glance': ('glance',),
             'ironic': ('ironic',)}
"""The databases of each database user."""
_SERVER = '/usr/sbin/mariadbd'
_INSTALL = '/usr/bin/mariadb-install-db'


def is_installed() -> bool:
    return all(os.access(path, os.X_OK) for path in (_SERVER, _INSTALL))


def parts(settings: settings_module.Settings) -> list:
    data = settings.data('mariadb')
    statements = settings.etc('mariadb.sql')

    def install():
        # The files of an interrupted installation cannot be used.
        shutil.rmtree(data, ignore_errors=True)
        steps.command(settings, 'mariadb-install', [
            _INSTALL, '--no-defaults', f'--datadir={data}',
            '--auth-root-authentication-method=normal', '--skip-test-db',
            *_user()])
        _write(statements, settings)

    return [
        steps.Step('mariadb-files', (), install),
        steps.Service(
            'mariadb', ('mariadb-files',),
            [_SERVER, '--no-defaults', f'--datadir={data}',
             f'--bind-address={settings_module.ADDRESS}',
             f'--port={settings.port("mariadb")}',
             # Relative to the data directory, because the path of a socket
             # can only have about a hundred characters.
             '--socket=mariadb.socket', f'--pid-file={data}/mariadb.pid',
             f'--init-file={statements}', f'--tmpdir={settings.data()}',
             '--skip-name-resolve', '--max-connections=500',
             '--character-set-server=utf8mb4',
             '--performance-schema=off', '--skip-log-bin',
             # The data does not have to survive a crash of the machine.
             '--innodb-flush-method=nosync',
             '--innodb-flush-log-at-trx-commit=2', '--sync-frm=off',
             *_user()],
            probes.database(settings, 'keystone')),
    ]


def _user():
    """Return the option that mariadbd requires to run as root."""
    return ['--user=root'] if os.geteuid() == 0 else []


def _write(path: pathlib.Path, settings):
    """Write the statements for each start, one per line."""
    lines = []
    for user, databases in DATABASES.items():
        account = f"'{user}'@'{settings_module.ADDRESS}'"
        lines.append(f'CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '
                     f"'{settings.password(user)}';")
        for database in databases:
            lines += [f'CREATE DATABASE IF NOT EXISTS {database};',
                      f'GRANT ALL ON {database}.* TO {account};']
    path.touch(mode=0o600)
    path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
