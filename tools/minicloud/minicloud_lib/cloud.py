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

"""A cloud as a whole: started, looked at, stopped, wiped."""

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
# What the others talk to while they end, and what that talks to.
_LAST = (('rabbitmq', 'mariadb'), ('epmd',))


class Cloud:
    """:param say: told of each part that is done, in one line."""

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
        """Start everything that does not run yet.

        Each part starts as soon as what it needs is there.

        :raises MinicloudError: the first failure; what runs is left so,
            to be looked at, continued or wiped.
        """
        began = time.monotonic()
        waiting = dict(self._parts)
        results: queue.Queue[tuple] = queue.Queue()
        done: set[str] = set()
        while len(done) < len(self._parts):
            for name, part in list(waiting.items()):
                if done.issuperset(part.needs):
                    del waiting[name]
                    # Not waited for when another one fails.
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
        """End everything of this cloud, and wait until it is gone."""
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
        """End everything at once and remove all of the cloud."""
        processes.end(self.settings, processes.names(self.settings),
                      signal.SIGKILL)
        shutil.rmtree(self.settings.directory)

    def restart(self, name: str) -> None:
        """End a service, if it runs, and start it.

        :raises MinicloudError: if there is none, or it does not come up.
        """
        service = self.service(name)
        processes.end(self.settings, [name])
        service.run(self.settings)

    def kill(self, name: str) -> None:
        """End a service as the kernel does: no more of its code runs.

        :raises MinicloudError: if there is no such service, or it does not
            run.
        """
        self.service(name)
        if not processes.members(self.settings, name):
            raise error.MinicloudError(f'{name} does not run')
        processes.end(self.settings, [name], signal.SIGKILL)

    def status(self) -> list[dict[str, object]]:
        """Each service with its process, and what is missing."""
        rows = []
        for service in self.services:
            leader = processes.leader(self.settings, service.name)
            missing = ('does not run' if leader is None
                       else service.probe())
            rows.append({'service': service.name,
                         'pid': leader and leader.pid,
                         'up': missing is None, 'missing': missing or ''})
        return rows

    def service(self, name: str) -> steps.Service:
        """:raises MinicloudError: if there is none of that name."""
        part = self._parts.get(name)
        if not isinstance(part, steps.Service):
            raise error.MinicloudError(
                f'there is no service {name!r}; there are '
                + ', '.join(service.name for service in self.services))
        return part

    def _run(self, part, results):
        began = time.monotonic()
        try:
            changed, problem = part.run(self.settings), None
        except error.MinicloudError as caught:
            changed, problem = True, caught
        # Whatever it is, the thread that waits has to hear of it.
        except Exception as caught:
            changed, problem = True, error.MinicloudError(
                f'{part.name} failed: {caught!r}')
        results.put((part.name, changed, time.monotonic() - began, problem))


def check_packages() -> None:
    """Whether there is what does not come from PyPI.

    :raises MinicloudError: naming what is to be installed.
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
    """Keep other commands off the cloud until done."""
    settings.directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(settings.directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
