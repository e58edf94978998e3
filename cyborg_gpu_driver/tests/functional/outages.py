# SPDX-License-Identifier: Apache-2.0

"""Tools that cause outages, and checks of what holds during and after them.

The tools are a door or a gate in front of a service and a disk that fills up.
The cloud has servers that are bound before, during and after the outage.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import subprocess
import threading
import time
import urllib.parse

import fixtures

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import test_mig
from demo_lib import nova_part

_REFUSAL = (b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n'
            b'Connection: close\r\n\r\nbusy')
_CHUNK = 1 << 16
REPORTS = 4 if scope.ALL else 1
"""How many reports must add nothing to the log during an outage."""


class OutageCase(test_mig.OneGpuCase):
    """One server that stays, one deleted during the outage, one created."""

    overrides = {
        **test_mig.OneGpuCase.overrides,
        # Each additional profile makes each of the many reports longer.
        'gpu_policy:one': {
            **test_mig.OneGpuCase.overrides['gpu_policy:one'],
            'profiles': '1g.10gb, 2g.20gb, 3g.40gb'}}

    def start(self, **overrides):
        super().start(**overrides)
        self.watch_log()
        self.stays = self.profile('CUSTOM_NVIDIA_3G_40GB')
        self.goes = self.profile('CUSTOM_NVIDIA_1G_10GB')
        self.staying = self.cloud.bind(self.stays)
        self.report()
        self.alone = self.everything()
        self.going = self.cloud.bind(self.goes)
        self.report()
        self.both = self.everything()

    def watch_log(self):
        self.log = self.useFixture(fixtures.FakeLogger(
            'cyborg_gpu_driver', level=logging.WARNING,
            format='%(name)s %(message)s', nuke_handlers=False))
        self.looked = 0

    def promised(self):
        """Return how many units Placement promises or has, by profile."""
        return {label: total - reserved for label, (total, reserved)
                in self.reserved().items()}

    def lines(self):
        """Return the warnings and errors logged since the last call."""
        lines = self.log.output.splitlines()
        new = lines[self.looked:]
        self.looked = len(lines)
        return new

    def assert_said_once(self, *words, report=None):
        """Check that a report logs each word once, and later ones nothing."""
        report = report or self.cloud.report
        self.lines()
        report()
        first = self.lines()
        for word in words:
            self.assertEqual(1, len([line for line in first if word in line]),
                             (word, first))
        self.assertNotIn('Traceback', '\n'.join(first))
        for _ in range(REPORTS):
            report()
        self.assertEqual([], self.lines())

    def assert_bind_fails(self):
        """Check that a bind fails and leaves nothing."""
        before = self.everything()
        self.assertRaises(nova_part.BindFailed, self.cloud.bind, self.goes)
        self.assertEqual(before, self.everything())

    def assert_all_right(self):
        """Check that only the staying server is left; others come and go."""
        self.report()
        self.assertEqual(self.alone, self.everything())
        self.assertEqual(1, self.handles_in_use())
        self.cloud.unbind(self.cloud.bind(self.goes))
        self.report()
        self.assertEqual(self.alone, self.everything())
        self.cloud.unbind(self.staying)
        self.report()
        self.assertEqual(self.untouched, self.everything())
        self.assertEqual(0, self.handles_in_use())


class Door(fixtures.Fixture):
    """A port through which clients reach a service on another port.

    :param target: the service's URL.
    """

    def __init__(self, target: str):
        super().__init__()
        parsed = urllib.parse.urlsplit(target)
        self._target = (parsed.hostname, parsed.port)
        self._answer = None
        self._delay = 0.0
        self._mute = False
        self._listener = None
        self._port = 0
        self._open: set[socket.socket] = set()

    def _setUp(self):
        self._listen()
        self.addCleanup(self._close)

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self._port}'

    @contextlib.contextmanager
    def shut(self):
        """Refuse every connection during the block."""
        self._close()
        try:
            yield
        finally:
            self._listen()

    def busy(self):
        """Answer 503 during the block."""
        return self._answering(_REFUSAL)

    def silent(self):
        """Accept requests and answer none during the block."""
        return self._answering(b'')

    @contextlib.contextmanager
    def slow(self, seconds: float):
        """Delay each request by this time during the block."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    @contextlib.contextmanager
    def mute(self):
        """Forward requests, but no answers, during the block.

        The service does what it is asked for, but no client learns of it.
        """
        self._mute = True
        self._hang_up()
        try:
            yield
        finally:
            self._mute = False
            self._hang_up()

    @contextlib.contextmanager
    def _answering(self, answer):
        self._answer = answer
        self._hang_up()
        try:
            yield
        finally:
            self._answer = None
            self._hang_up()

    def _listen(self):
        self._listener = socket.create_server(('127.0.0.1', self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,),
                         daemon=True).start()

    def _close(self):
        # Wakes the thread that waits for a connection.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._hang_up()

    def _hang_up(self):
        for connection in tuple(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,),
                             daemon=True).start()

    def _serve(self, connection):
        with connection, contextlib.suppress(OSError):
            if self._answer is None:
                with socket.create_connection(self._target) as service:
                    threading.Thread(
                        target=_drain if self._mute else _pass_on,
                        args=(service, connection), daemon=True).start()
                    self._pass_requests(connection, service)
            else:
                while connection.recv(_CHUNK):
                    connection.sendall(self._answer)
        self._open.discard(connection)

    def _pass_requests(self, connection, service):
        while data := connection.recv(_CHUNK):
            time.sleep(self._delay)
            service.sendall(data)
        service.shutdown(socket.SHUT_RDWR)


def _pass_on(source, sink):
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)


def _drain(source, _sink):
    with contextlib.suppress(OSError):
        while source.recv(_CHUNK):
            pass


class Gate:
    """A service that holds requests for as long as a test wants.

    :param application: the service's WSGI application.
    """

    def __init__(self, application):
        self._application = application
        self._left: int | None = None
        self._opened = threading.Event()
        self._changed = threading.Event()

    def __call__(self, environ, start_response):
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._changed.set()
                self._opened.wait()
        return self._application(environ, start_response)

    @contextlib.contextmanager
    def shut_during(self, act, after):
        """Call something whose requests wait until the block ends.

        :param act: called in a thread. The block begins when one of its
            requests waits, or when it has ended. Its exception is raised
            after the block.
        :param after: how many requests are answered first.
        """
        errors = []

        def run():
            try:
                act()
            except Exception as error:
                errors.append(error)
            finally:
                self._changed.set()

        self._opened.clear()
        self._changed.clear()
        self._left = after
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._changed.wait()
        try:
            yield
        finally:
            self._left = None
            self._opened.set()
            thread.join()
        if errors:
            raise errors[0]


class SmallDisk(fixtures.Fixture):
    """A small filesystem that is mounted over a directory, with its files.

    :param directory: the directory, whose files are kept.
    :ivar refusal: why no filesystem could be mounted; empty if one was.
    """

    _SIZE = '1m'

    def __init__(self, directory: str):
        super().__init__()
        self._directory = directory
        self._filling = os.path.join(directory, 'filling')
        self.refusal = ''

    def _setUp(self):
        before = self.useFixture(fixtures.TempDir()).path
        _run('cp', '-a', f'{self._directory}/.', before)
        self.refusal = _run('mount', '-t', 'tmpfs', '-o',
                            f'size={self._SIZE},mode=0755', 'tmpfs',
                            self._directory)
        if not self.refusal:
            self.addCleanup(_run, 'umount', '--lazy', self._directory)
            _run('cp', '-a', f'{before}/.', self._directory)

    @contextlib.contextmanager
    def full(self):
        """Keep the disk full during the block."""
        with open(self._filling, 'wb', buffering=0) as stream:
            try:
                while True:
                    stream.write(bytes(_CHUNK))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        try:
            yield
        finally:
            os.unlink(self._filling)


def _run(*command):
    """Run a program; return its complaint, empty if it succeeds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True,
                              check=False)
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return ''
    return done.stderr.strip() or f'{command[0]} failed'
