# SPDX-License-Identifier: Apache-2.0


"""``cyborg-gpu nova config``."""

from __future__ import annotations

import argparse
import json

from cliff import command

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import context
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host import migration
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import handles
from cyborg_gpu_driver.nova import pci_config
from cyborg_gpu_driver.partition import fixed
from cyborg_gpu_driver.record import store


class ConfigNova(command.Command):
    """Write the lines of nova.conf for vGPUs that Nova assigns itself.

    These are the fixed_vgpus of GPUs without mdev (vendor VFIO). What is left
    out, and why, is written to standard error.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--pci-in-placement', action=argparse.BooleanOptionalAction,
            default=True,
            help='Nova reports PCI devices to Placement; without this option, '
                 'it cannot distinguish types of one product')
        parser.add_argument(
            '-f', '--format', dest='output_format',
            choices=('ini', 'json'), default='ini',
            help='ini: lines for nova.conf (default)')
        return parser

    def take_action(self, parsed_args):
        config = pci_config.build(self._assigned(),
                                  parsed_args.pci_in_placement)
        if parsed_args.output_format == 'json':
            self.app.stdout.write(
                json.dumps(config.to_dict(), indent=2) + '\n')
        elif config.assigned:
            self.app.stdout.write(config.dump())
        return 0

    def _assigned(self):
        machine = self.app.machine
        machine.explain()
        before = remembered(machine)
        migrations = migration.read(machine.platform, machine.host)
        found: list[pci_config.Assigned] = []
        for gpu in machine.host.gpus:
            governing = machine.settings.policy_for(gpu)
            if governing is None or not governing.fixed_vgpus:
                continue
            if fixed.is_left(gpu, governing):
                found += handles.assigned(
                    gpu, governing, before,
                    migrations[gpu.address] is True)
            else:
                output.say(f'GPU {gpu.address} is left out: '
                           + _why(gpu))
        if not found:
            output.say('No GPU of this host has vGPUs that Nova assigns '
                       'itself.')
        return found


def remembered(machine: context.Machine
               ) -> dict[model.PciAddress, str]:
    """Return the recorded fixed vGPU of each virtual function.

    An unreadable record is only printed, because the vGPU that a function
    has now takes precedence over the record.
    """
    records = store.of(gpu_conf.state_path(machine.conf))
    found: dict[model.PciAddress, str] = {}
    for gpu in machine.host.gpus:
        try:
            found.update(records.read(gpu.address).fixed.types)
        except exception.JournalError as error:
            output.say(str(error))
    return found


def _why(gpu):
    if gpu.framework is model.Framework.NONE:
        return 'it has no virtual functions that can carry vGPUs'
    return f'its vGPU framework is {gpu.framework.value}, not vendor-vfio'
