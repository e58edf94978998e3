# SPDX-License-Identifier: Apache-2.0

"""An API: a WSGI application served by uWSGI."""

from __future__ import annotations

import sys

from minicloud_lib import probes
from minicloud_lib import settings as settings_module
from minicloud_lib import steps

_THREADS = 8
MANY_THREADS = 40
"""For the APIs that call each other in a circle: a request for a server waits
in nova-api for cyborg-api, cyborg-api waits for a bind, and nova-api must get
a notification when the bind ends. With fewer threads than concurrent requests,
they wait for each other until RPC times out. The other APIs must not have so
many threads, because their pools of database connections are smaller."""


def service(settings: settings_module.Settings, name: str, port: str,
            module: str, needs: tuple[str, ...],
            environment: dict[str, str] | None = None,
            arguments: str | None = None,
            path: str = '/', threads: int = _THREADS) -> steps.Service:
    """Return the service of an API: one process with several threads.

    :param port: the name of its port in the settings.
    :param module: the module that has ``application``.
    :param arguments: the arguments that the module gets in ``sys.argv``.
    :param path: a path that answers without credentials, for the probe.
    """
    command = [
        steps.binary('uwsgi'),
        '--http-socket',
        f'{settings_module.ADDRESS}:{settings.port(port)}',
        '--virtualenv', sys.prefix,
        '--pythonpath', steps.PYTHON_PATH,
        '--module', f'{module}:application', '--need-app',
        '--enable-threads', '--threads', str(threads), '--die-on-term',
        '--buffer-size', '65535', '--disable-logging',
        # uWSGI closes each connection, and clients must know it.
        '--add-header', 'Connection: close']
    if arguments is not None:
        command += ['--pyargv', arguments]
    return steps.Service(name, needs, command,
                         probes.http(settings.url(port) + path),
                         environment or {})
