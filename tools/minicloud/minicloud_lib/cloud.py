# SPDX-License-Identifier: Apache-2.0

"""Start, stop and wipe a cloud, and show its status."""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator

from minicloud_lib import cyborg
from minicloud_lib import error
from minicloud_lib import glance
from minicloud_lib import identity
from minicloud_lib import ironic
from minicloud_lib import keystone
from minicloud_lib import mariadb
from minicloud_lib import neutron
from minicloud_lib import nova
from minicloud_lib import placement
from minicloud_lib import processes
from minicloud_lib import rabbitmq
from minicloud_lib import settings as settings_module
from minicloud_lib import steps

_COMPONENTS = (mariadb, rabbitmq, keystone, identity, placement, glance,
               neutron, ironic, nova, cyborg)
# The services that end last. All other services use RabbitMQ and MariaDB
# while they end, and RabbitMQ uses epmd.
_LAST = (('rabbitmq', 'mariadb'), ('epmd',))


class Cloud:
    """All services of a cloud.

    :param say: called with one line for each part that is done.
    """

    def __init__(self, settings: settings_module.Settings,
                 say: Callable[[str], None]):
        self.settings = settings
        self._say = say
        self._parts = {part.name: part for component in _COMPONENTS
                       for part in component.parts(settings)}

    @property
    def services(self) -> list[steps.Service]:
        return [part for part in self._parts.values()
                if isinstance(part, steps.Service)]

    def start(self) -> None:
        """Start all parts that are not running yet.

        Each part starts as soon as the parts that it needs are done.

        :raises MinicloudError: the first failure. Running services keep
            running, so that the user can inspect, continue or wipe them.
        """
        began = time.monotonic()
        waiting = dict(self._parts)
        results: queue.Queue[tuple] = queue.Queue()
        done: set[str] = set()
        while len(done) < len(self._parts):
            for name, part in list(waiting.items()):
                if done.issuperset(part.needs):
                    del waiting[name]
                    # A daemon, because nothing waits for it when another
                    # part fails.
                    threading.Thread(target=self._run, args=(part, results),
                                     daemon=True).start()
            name, changed, seconds, problem = results.get()
            if problem is not None:
                raise problem
            done.add(name)
            if changed:
                self._say(f'[{time.monotonic() - began:5.1f} s] {name} '
                          f'({seconds:.1f} s)')

    def stop(self) -> None:
        """End all processes of this cloud, and wait until they are gone."""
        names = processes.names(self.settings)
        last = [[name for name in group if name in names]
                for group in _LAST]
        first = [name for name in names
                 if not any(name in group for group in last)]
        for group in (first, *last):
            processes.end(self.settings, group)
            for name in group:
                self._say(f'{name} has ended')

    def wipe(self) -> None:
        """Kill all processes and remove the cloud's directory."""
        processes.end(self.settings, processes.names(self.settings),
                      signal.SIGKILL)
        shutil.rmtree(self.settings.directory)

    def restart(self, name: str) -> None:
        """End a service if it is running, and start it.

        :raises MinicloudError: if there is no such service, or it does not
            start.
        """
        service = self.service(name)
        processes.end(self.settings, [name])
        service.run(self.settings)

    def kill(self, name: str) -> None:
        """Kill a service with SIGKILL, so that it runs no more code.

        :raises MinicloudError: if there is no such service, or it is not
            running.
        """
        self.service(name)
        if not processes.members(self.settings, name):
            raise error.MinicloudError(f'{name} is not running')
        processes.end(self.settings, [name], signal.SIGKILL)

    def status(self) -> list[dict[str, object]]:
        """Return the PID of each service, and why it is not up."""
        rows = []
        for service in self.services:
            leader = processes.leader(self.settings, service.name)
            missing = ('is not running' if leader is None
                       else service.probe())
            rows.append({'service': service.name,
                         'pid': leader and leader.pid,
                         'up': missing is None, 'missing': missing or ''})
        return rows

    def service(self, name: str) -> steps.Service:
        """:raises MinicloudError: if there is no service with this name."""
        part = self._parts.get(name)
        if not isinstance(part, steps.Service):
            raise error.MinicloudError(
                f'there is no service {name!r}; the services are '
                + ', '.join(service.name for service in self.services))
        return part

    def _run(self, part, results):
        began = time.monotonic()
        try:
            changed, problem = part.run(self.settings), None
        except error.MinicloudError as caught:
            changed, problem = True, caught
        # The thread that waits must get every failure.
        except Exception as caught:
            changed, problem = True, error.MinicloudError(
                f'{part.name} failed: {caught!r}')
        results.put((part.name, changed, time.monotonic() - began, problem))


def check_packages() -> None:
    """Check for the software that does not come from PyPI.

    :raises MinicloudError: if some is missing; says how to install it.
    """
    missing = [name for name, module in (('MariaDB', mariadb),
                                         ('RabbitMQ', rabbitmq))
               if not module.is_installed()]
    if missing:
        raise error.MinicloudError(
            f'not installed: {", ".join(missing)}. On Debian, as root: '
            'apt-get install --no-install-recommends '
            '$(tools/system-packages minicloud)')


@contextlib.contextmanager
def locked(settings: settings_module.Settings) -> Iterator[None]:
    """Lock the cloud against other commands."""
    settings.directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(settings.directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
