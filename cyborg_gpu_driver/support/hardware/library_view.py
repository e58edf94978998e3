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


"""This library's view of a machine: the answers of its own commands."""

from __future__ import annotations

import contextlib
import io
import types
from typing import Any

from cliff import columns
from oslo_config import cfg

from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.cmd.gpu import offer
from cyborg_gpu_driver.cmd.gpu import report
from cyborg_gpu_driver.cmd.gpu import show as gpu
from cyborg_gpu_driver.host import platform

COMMANDS = {
    'gpu list': (gpu.ListGpu, ()),
    'offer list': (offer.ListOffer, ()),
    'offer list --all': (offer.ListOffer, ('--all',)),
    'report show': (report.ShowReport, ()),
}


class SeenMachine(cmd_machine.Machine):
    """The host of a command, on a platform that is open already."""

    def __init__(self, conf: cfg.ConfigOpts, seen: platform.Platform):
        super().__init__(conf)
        self._seen = seen

    @property
    def platform(self) -> platform.Platform:
        """The platform that the host is read from."""
        return self._seen


def collect(conf: cfg.ConfigOpts, seen: platform.Platform) -> dict[str, Any]:
    """Return the rows and remarks of each command, all on one snapshot.

    A command that fails is recorded with its error, because the record should
    show how the library fails on this machine.

    :param conf: the options, with ``[gpu]`` registered.
    """
    machine = SeenMachine(conf, seen)
    return {name: _run(machine, command, arguments)
            for name, (command, arguments) in COMMANDS.items()}


def _run(machine, command_class, arguments):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            # The commands use only these attributes of cliff's application.
            command = command_class(types.SimpleNamespace(
                machine=machine, view=machine), None)
            parsed = command.get_parser('').parse_args(
                [*arguments, '-f', 'json'])
            names, rows = command.take_action(parsed)
            found = [dict(zip(names, map(_plain, row), strict=True))
                     for row in rows]
    except Exception as error:
        return {'error': f'{type(error).__name__}: {error}',
                'remarks': said.getvalue().splitlines()}
    return {'rows': found, 'remarks': said.getvalue().splitlines()}


def _plain(value):
    if isinstance(value, columns.FormattableColumn):
        return value.machine_readable()
    return value
