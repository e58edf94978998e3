# SPDX-License-Identifier: Apache-2.0


"""SQLite databases with the schemas of the released services.

The services' own commands create the schemas once, as templates. Every cloud
gets copies of these.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading

import sqlalchemy
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy.dialects import plugins

from demo_lib import configfile

BUSY_TIMEOUT = 60
"""Seconds for which a transaction waits for another one."""

# Cyborg's migrations alter columns in a way that SQLite does not support, so
# the command for first installations creates its schema.
_CYBORG = ('from cyborg.cmd import dbsync; dbsync.main()',
           ('--config-file', 'cyborg-db.conf', 'create_schema'))
# Starting Placement with sync_on_startup runs its migrations and fills in
# the standard traits and resource classes.
_PLACEMENT = ('from placement import wsgi; wsgi.init_application()', ())

_OUTER = 'cyborg_gpu_driver_outer'
_PLUGIN = 'cyborg_gpu_driver_pool'


def url(path: str) -> str:
    """Return SQLAlchemy's URL of the database in the file ``path``.

    A ``path`` that is a URL already is returned unchanged.
    """
    if '://' in path:
        return path
    return f'sqlite:///{path}?timeout={BUSY_TIMEOUT}'


class Templates:
    """Empty databases of Cyborg and of Placement below ``directory``."""

    def __init__(self, directory: str):
        self.cyborg = os.path.join(directory, 'cyborg-template.sqlite')
        self.placement = os.path.join(directory, 'placement-template.sqlite')
        self._directory = directory

    def make(self) -> None:
        """Create both databases in parallel.

        :raises RuntimeError: if a command failed; has the command's output.
        """
        configfile.write(
            os.path.join(self._directory, 'cyborg-db.conf'),
            {'database': {'connection': url(self.cyborg)}})
        _finish(self._start(*_CYBORG), self._start_placement())
        for path in (self.cyborg, self.placement):
            _use_write_ahead_log(path)

    def copy(self, directory: str) -> tuple[str, str]:
        """Create copies; return Cyborg's path and Placement's path."""
        return (shutil.copyfile(self.cyborg,
                                os.path.join(directory, 'cyborg.sqlite')),
                shutil.copyfile(self.placement,
                                os.path.join(directory, 'placement.sqlite')))

    def _start_placement(self):
        configfile.write(
            os.path.join(self._directory, 'placement.conf'),
            {'placement_database': {'connection': url(self.placement),
                                    'sync_on_startup': True}})
        return self._start(*_PLACEMENT)

    def _start(self, code, arguments):
        return subprocess.Popen(
            [sys.executable, '-c', code, *arguments], cwd=self._directory,
            env=dict(os.environ, OS_PLACEMENT_CONFIG_DIR=self._directory),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class Attached:
    """One service's database, attached to its transaction manager.

    :param manager: the service's root ``enginefacade`` manager.
    :param path: the database file.
    """

    def __init__(self, manager, path: str):
        self._own = enginefacade.transaction_context()
        connection = sqlalchemy.make_url(url(path))
        if connection.get_backend_name() == 'sqlite':
            connection = connection.update_query_dict({'plugin': _PLUGIN})
        self._own.configure(
            connection=connection.render_as_string(hide_password=False),
            sqlite_synchronous=False)
        self._own.append_on_engine_create(_begin_immediately)
        self._reset = manager.patch_factory(self._own)

    def detach(self) -> None:
        """Restore the manager's former database."""
        self._reset()
        self._own.dispose_pool()


class KeepConnections(sqlalchemy.CreateEnginePlugin):
    """Let an engine keep its connections, which is SQLAlchemy's default.

    oslo.db opens an SQLite file for each transaction (NullPool, in
    oslo_db.sqlalchemy.engines). SQLite then reads the schema again, which
    takes longer than most transactions.
    """

    def __init__(self, url, kwargs):
        super().__init__(url, kwargs)
        # Threads wait for each other in SQLite, never for a connection.
        kwargs.update(poolclass=sqlalchemy.QueuePool, max_overflow=-1)

    def update_url(self, url):
        return url.difference_update_query(['plugin'])


plugins.register(_PLUGIN, __name__, 'KeepConnections')


def _finish(*running):
    outputs = [process.communicate()[0] for process in running]
    for process, output in zip(running, outputs):
        if process.returncode:
            raise RuntimeError('the database could not be created:\n'
                               + output.decode('utf-8', 'replace'))


def _begin_immediately(engine):
    """Let transactions wait for each other at their first statement.

    If a transaction reads first and writes later, SQLite refuses the write
    ("database is locked") when another transaction has written in between,
    regardless of the timeout. MySQL and PostgreSQL let it wait on the row.
    Placement reads in a second transaction while its first one is open, in
    the same thread. The second one must not wait, and need not, because the
    write-ahead log does not block readers.
    """
    of_thread = threading.local()
    listens_for = sqlalchemy.event.listens_for

    @listens_for(engine, 'before_cursor_execute', retval=True)
    def rewrite(connection, cursor, statement, parameters, context, many):
        if statement == 'BEGIN' and not getattr(of_thread, 'open', False):
            statement = 'BEGIN IMMEDIATE'
        return statement, parameters

    @listens_for(engine, 'after_cursor_execute')
    def mark(connection, cursor, statement, parameters, context, many):
        if statement == 'BEGIN IMMEDIATE':
            of_thread.open = connection.info[_OUTER] = True

    @listens_for(engine, 'commit')
    @listens_for(engine, 'rollback')
    def unmark(connection):
        if connection.info.pop(_OUTER, False):
            of_thread.open = False


def _use_write_ahead_log(path):
    connection = sqlite3.connect(path)
    try:
        connection.execute('PRAGMA journal_mode = WAL')
    finally:
        connection.close()
