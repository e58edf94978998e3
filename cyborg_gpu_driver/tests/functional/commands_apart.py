# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu`` in separate processes that can be stopped half-way.

One process imports all commands and forks for each command, because the
imports take longer than most commands. That process has no threads. A test's
process has threads, and therefore must not fork.

A command stops itself (SIGSTOP) before its n-th step. A step is a change of
a record or a request to a service. Changes of the simulated hardware are not
steps: real hardware does not stop with a process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import traceback

import fixtures
import pynvml
from cliff import commandmanager

from cyborg_gpu_driver.cmd import main

_WRITES = os.O_WRONLY | os.O_RDWR
_CHANGES = frozenset({'os.rename', 'os.remove', 'os.link', 'os.mkdir',
                      'os.rmdir'})


@dataclasses.dataclass
class Command:
    """A command that has ended or was stopped."""

    pid: int
    code: int | None
    """The exit code, -9 if the command was killed; None while stopped."""
    output: str
    errors: str


class Commands(fixtures.Fixture):
    """Runs commands one at a time.

    :param config_path: returns the path of cyborg.conf.
    """

    def __init__(self, config_path):
        super().__init__()
        self._config_path = config_path

    def _setUp(self):
        self._directory = self.useFixture(fixtures.TempDir()).path
        self._server = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-m', __name__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self._end)

    def run(self, *arguments: str, stop: int | None = None,
            steps: str = '', spare: str = '') -> Command:
        """Run a command until it ends or stops.

        :param stop: the step before which the command stops; None for none.
        :param steps: the directory in which changes are steps.
        :param spare: changes of paths that begin with this are not steps.
        """
        return self._ask({
            'arguments': ['--config-file', self._config_path(), *arguments],
            'environment': dict(os.environ), 'stop': stop, 'steps': steps,
            'spare': spare,
            'files': [os.path.join(self._directory, name)
                      for name in ('output', 'errors')]})

    def resume(self, command: Command) -> Command:
        """Let a stopped command continue to its end."""
        return self._ask({'signal': signal.SIGCONT, 'pid': command.pid})

    def kill(self, command: Command) -> Command:
        """Kill a stopped command."""
        return self._ask({'signal': signal.SIGKILL, 'pid': command.pid})

    def _ask(self, request):
        print(json.dumps(request), file=self._server.stdin, flush=True)
        answer = json.loads(self._server.stdout.readline())
        texts = []
        for name in ('output', 'errors'):
            with open(os.path.join(self._directory, name),
                      encoding='utf-8') as stream:
                texts.append(stream.read())
        return Command(answer['pid'], answer['code'], *texts)

    def _end(self):
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


class _Stopper:
    """Stops this process before its n-th step."""

    def __init__(self, request):
        self._directory = request['steps']
        self._spare = request['spare']
        self._left = request['stop']
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if event == 'http.client.send' or self._is_change(event, arguments):
            self._left -= 1
            if self._left == -1:
                self._stop()

    @staticmethod
    def _stop():
        machine = getattr(pynvml.nvmlLib, 'machine', None)
        # Another thread may be using the hardware.
        with machine.without_threads() if machine else (
                contextlib.nullcontext()):
            os.kill(os.getpid(), signal.SIGSTOP)

    def _is_change(self, event, arguments):
        if event == 'open':
            flags = arguments[2]
            if not isinstance(flags, int) or not flags & _WRITES:
                return False
        elif event not in _CHANGES:
            return False
        path = arguments[0]
        return (isinstance(path, str) and path.startswith(self._directory)
                and not path.startswith(self._spare)
                and '/locks/' not in path)


def _start(request):
    """Fork for a command; return the child's process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number, path in enumerate(request['files'], 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
                    number)
        os.environ.clear()
        os.environ.update(request['environment'])
        if request['stop'] is not None:
            _Stopper(request)
        code = main.main(request['arguments'])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve():
    """Answer requests until there are no more."""
    commandmanager.CommandManager(main.NAMESPACE)
    answers = os.fdopen(os.dup(1), 'w', encoding='utf-8')
    stopped = None
    for line in sys.stdin:
        request = json.loads(line)
        if 'signal' in request:
            pid = request['pid']
            os.kill(pid, request['signal'])
        else:
            pid = _start(request)
        status = os.waitpid(pid, os.WUNTRACED)[1]
        stopped = pid if os.WIFSTOPPED(status) else None
        print(json.dumps({
            'pid': pid, 'code': None if stopped
            else os.waitstatus_to_exitcode(status)}),
            file=answers, flush=True)
    if stopped is not None:
        os.kill(stopped, signal.SIGKILL)
        os.waitpid(stopped, 0)


if __name__ == '__main__':
    _serve()
