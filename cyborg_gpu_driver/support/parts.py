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

"""The parts of a support bundle, each independent of the others."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import platform as python_platform
import re
import stat
import types
from collections.abc import Callable
from typing import Any

from cliff import columns
from oslo_config import cfg

from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.cmd.diagnose import check
from cyborg_gpu_driver.cmd.diagnose import doctor
from cyborg_gpu_driver.cmd.gpu import report
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.support import configuration

LOG_BYTES = 1 << 20
"""Bytes from the end of the agent's log."""
_RECORD_BYTES = 1 << 20
_PACKAGES = re.compile(
    'oslo|os-|os_|openstack|keystone|python-.*client|cyborg|nova|placement'
    '|ironic|nvidia|cliff|stevedore|pbr|eventlet|jsonschema|osc', re.I)
_OS_RELEASE = '/etc/os-release'


class LeftOut(Exception):
    """A part does not apply to this host; the message says why."""


def parts(machine: cmd_machine.Machine,
          read_options: Callable[[], cfg.ConfigOpts], version: str
          ) -> dict[str, Callable[[], Any]]:
    """Return the functions that make the parts, by name.

    A function returns a document for JSON, or a list of lines of a log.

    :param machine: the host.
    :param read_options: returns new options on each call, because two parts
        may not register the same option.
    :param version: the version of this program.
    """
    def seen():
        return _SeenMachine(read_options(), machine.platform)

    return {
        'versions': lambda: _versions(machine, version),
        'configuration': lambda: configuration.collect(machine.conf),
        'records': lambda: _records(machine),
        'check': lambda: _answer(seen(), check.CheckHost),
        'report': lambda: _answer(seen(), report.ShowReport),
        'doctor': lambda: _answer(seen(), _LocalDoctor),
        'agent-log': lambda: _log(machine.conf),
    }


class _SeenMachine(cmd_machine.Machine):
    """The host of a command, on a platform that is open already."""

    def __init__(self, conf: cfg.ConfigOpts, seen: platform.Platform):
        super().__init__(conf)
        self._seen = seen

    @property
    def platform(self) -> platform.Platform:
        """The platform that the host is read from."""
        return self._seen


class _LocalDoctor(doctor.Doctor):
    """The doctor, who asks no cloud of clouds.yaml or the environment."""

    asks_cloud = False


def _versions(machine, version):
    release = _text(_OS_RELEASE) or ''
    named = re.search('^PRETTY_NAME="?(.*?)"?$', release, re.M)
    return {
        'cyborg_gpu_driver': version,
        'python': python_platform.python_version(),
        'kernel': ' '.join(os.uname()[position] for position in (0, 2, 3, 4)),
        'system': named and named[1],
        'nvidia_driver': machine.platform.sysfs.read_optional(
            'module', 'nvidia', 'version'),
        'simulated': machine.platform.simulated,
        'root': machine.platform.is_root(),
        'packages': {
            name: found.version for found, name in sorted(
                ((found, found.metadata['Name'] or '')
                 for found in importlib.metadata.distributions()),
                key=lambda item: item[1])
            if _PACKAGES.match(name)},
    }


def _text(path):
    try:
        with open(path, encoding='utf-8', errors='replace') as stream:
            return stream.read()
    except OSError:
        return None


def _records(machine):
    """Return each GPU's record as on disk, or why it cannot be read."""
    records = store.of(machine.state_path)
    found = {}
    for address in records.addresses():
        path = records.path(address)
        try:
            data = _tail(path, _RECORD_BYTES)
        except OSError as error:
            found[str(address)] = {'error': str(error)}
            continue
        text = data.decode('utf-8', 'replace')
        try:
            found[str(address)] = json.loads(text)
        except (ValueError, RecursionError) as error:
            found[str(address)] = {'error': str(error), 'text': text}
    if not found:
        raise LeftOut(f'{machine.state_path} has no records')
    return found


def _answer(machine, command_class):
    """Return the rows and the remarks of a command."""
    said = io.StringIO()
    # A command uses only these attributes of cliff's application.
    command = command_class(types.SimpleNamespace(
        machine=machine, view=machine, stdout=io.StringIO()), None)
    parsed = command.get_parser('').parse_args(['-f', 'json'])
    with contextlib.redirect_stderr(said):
        names, rows = command.take_action(parsed)
        found = [dict(zip(names, map(_plain, row), strict=True))
                 for row in rows]
    return {'rows': found, 'remarks': said.getvalue().splitlines()}


def _plain(value):
    if isinstance(value, columns.FormattableColumn):
        return value.machine_readable()
    return value


def _log(conf: cfg.ConfigOpts):
    path = configuration.log_path(conf)
    if path is None:
        raise LeftOut('[DEFAULT] log_file is not set')
    return _tail(path, LOG_BYTES).decode('utf-8', 'replace').splitlines()


def _tail(path: str, length: int) -> bytes:
    """Return the end of a regular file.

    :raises OSError: if the file cannot be read.
    """
    # If the path is a pipe, open() would wait forever without O_NONBLOCK.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f'{path} is not a regular file')
        return os.pread(descriptor, length, max(0, found.st_size - length))
    finally:
        os.close(descriptor)
