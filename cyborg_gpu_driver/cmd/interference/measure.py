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

"""``cyborg-gpu interference measure``: how applications slow each other."""

from __future__ import annotations

import dataclasses
import functools

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.interference import answers
from cyborg_gpu_driver.cmd.interference import measurement
from cyborg_gpu_driver.cmd.output import terminal
from cyborg_gpu_driver.host.nvml import process as nvml_process
from cyborg_gpu_driver.interference import machine

_MIB = 1 << 20


class MeasureInterference(answers.Lister):
    """Measure how much applications slow each other down.

    Runs each command alone, then beside each other command and beside a second
    run of itself. The commands run on this host as the calling user, without a
    shell. Writes the run times and the slowdowns after each pair; if it is
    interrupted, the same command continues from there. nova-scheduler reads
    the file through [gpu_weigher] interference_file.
    """

    brief = answers.BRIEF

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        measurement.add_options(parser)
        return parser

    def take_action(self, parsed_args):
        found = measurement.wanted(parsed_args)
        here = self._machine(parsed_args.timeout)
        self.code = measurement.run(
            found, parsed_args,
            lambda endings: dataclasses.replace(here, endings=endings))
        return answers.COLUMNS, answers.rows(found)

    def _machine(self, timeout):
        """Return this machine, with its GPUs if NVML answers."""
        nvml = self.app.view.platform.nvml
        try:
            addresses = nvml.addresses()
            smallest = nvml_process.smallest(nvml, addresses)
        except exception.GpuDriverError as error:
            terminal.say(f'The memory of GPUs is not measured: {error}')
            return machine.Machine(timeout)
        return machine.Machine(
            timeout, functools.partial(_used, nvml, addresses),
            smallest and smallest // _MIB)


def _used(nvml, addresses, pids):
    try:
        return nvml_process.memory(nvml, addresses, pids)
    except exception.GpuDriverError:
        return None
