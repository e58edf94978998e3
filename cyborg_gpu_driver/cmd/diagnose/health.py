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


"""``cyborg-gpu health``: which GPUs are unhealthy, and why."""

from __future__ import annotations

import contextlib

from cliff import command

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.cmd.context import machine as machine_module
from cyborg_gpu_driver.cmd.diagnose import doctor
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import model


class ShowHealth(output.Lister):
    """Show the health of this host's GPUs.

    Asks the GPUs and reads the records of cyborg-agent. Changes nothing. The
    exit code is 0 if all GPUs are healthy, 1 if a GPU or a part of it is
    unhealthy, and 2 if none is known to be unhealthy but the health of a GPU
    that is bound to NVIDIA's driver is not known.
    """

    brief = ('address', 'part', 'state', 'reasons', 'since')

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._code = 0

    def take_action(self, parsed_args):
        machine = self.app.machine
        host = machine.reader.snapshot(links=False)
        if host.nvml_problem:
            machine_module.say(f'NVML: {host.nvml_problem}')
        for address in machine.records.closed_by_damage():
            machine_module.say(
                f'GPU {address} gets no new server: its record was damaged, '
                'and its earlier errors may be lost. If it is in order: '
                f'cyborg-gpu gpu uncordon {address}')
        statuses = machine.health.statuses(host)
        self._code = doctor.exit_code(doctor.of_health(statuses))
        return (('address', 'part', 'state', 'reasons', 'since',
                 'temperature', 'ecc_uncorrected', 'remapped_rows', 'xids'),
                [row for status in statuses for row in _rows(status)])

    def run(self, parsed_args):
        return super().run(parsed_args) or self._code


class ClearHealth(command.Command):
    """Clear the recorded health problems of a GPU.

    For a GPU that was reset by hand or repaired. A problem that persists makes
    it unhealthy again at the agent's next report.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'gpu', metavar='GPU',
            help=f'the GPU, by {choice.WAYS}; for a GPU that is no longer '
                 'present, give its full PCI address')
        return parser

    def take_action(self, parsed_args):
        keeper = self.app.machine.health
        with contextlib.suppress(exception.InvalidPciAddress):
            if keeper.replaced(model.PciAddress.parse(parsed_args.gpu)):
                return
        keeper.replaced(self.app.machine.gpu(parsed_args.gpu).address)


def _rows(status):
    """Yield a row for the GPU and one for each unhealthy part of it."""
    facts = status.facts
    yield (*_columns(status, None, _state(status)),
           output.Optional(facts.temperature),
           output.Optional(facts.ecc_uncorrected),
           output.Optional(facts.remapped_rows), _xids(status, None))
    for part, verdict in status.parts.items():
        unknown = output.Optional(None)
        yield (*_columns(status, part, verdict.state.value),
               unknown, unknown, unknown, _xids(status, part))


def _columns(status, part, state):
    verdict = status.parts[part] if part else status.verdict
    since = verdict.since and moments.of(verdict.since)
    return (str(status.gpu.address),
            output.Optional(str(part) if part else None), state,
            output.Names(verdict.reasons), output.Time(since or None))


def _state(status):
    if status.verdict.is_unhealthy or status.facts.answered:
        return status.verdict.state.value
    return 'unknown'


def _xids(status, part):
    return output.Counts({str(item.xid): item.count
                          for item in status.conditions
                          if item.xid and item.part == part})
