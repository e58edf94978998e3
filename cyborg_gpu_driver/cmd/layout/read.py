# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu layout plan|export|generate``, which change no GPU.

Options have the names of mig-parted, with one exception: ``--config-file`` is
an option of this program that names cyborg.conf. Here ``-f`` names a file, as
in mig-parted; in other commands it is the format of the output.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import yaml
from cliff import command

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import context
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import state as layout_state
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml
from cyborg_gpu_driver.program.ready import apply


class LayoutCommand(command.Command):
    """A command of the group ``layout``."""

    formats: tuple[str, ...] = ('text', 'json', 'yaml')
    """The values of ``-o``; the first is the default."""

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '-o', '--format', '--output-format', dest='output_format',
            choices=self.formats, default=self.formats[0],
            help='format of the output (default: %(default)s)')
        return parser

    def write(self, text: str) -> None:
        """Write one answer to standard output."""
        self.app.stdout.write(text if text.endswith('\n') else text + '\n')

    def write_value(self, value: Any, output_format: str) -> None:
        """Write a plain value in a format for programs."""
        if output_format == 'json':
            self.write(json.dumps(value, indent=2))
        else:
            self.write(yaml.safe_dump(value, sort_keys=False))


def add_entry(parser: argparse.ArgumentParser) -> None:
    """Add the options for one entry of a layout file and its effect."""
    parser.add_argument(
        '-f', '--layout-file', metavar='FILE', required=True,
        help="layout file in mig-parted's format; - is standard input")
    parser.add_argument(
        '-c', '--selected-config', metavar='NAME',
        help='entry of the file; may be left out if there is only one')
    parser.add_argument(
        '-m', '--mode-only', action='store_true',
        help='change the MIG mode only; instances are kept, unless MIG mode '
             'is turned off, which destroys idle ones')


class PlanLayout(LayoutCommand):
    """Show what applying a layout would change, and change nothing.

    Exits 0 if the layout is in effect, and 1 if a GPU differs from it or
    cannot get it.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        add_entry(parser)
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine.for_changes(links=False)
        rows, differ = [], False
        for index, gpu, wanted in wanted_of(machine, parsed_args):
            planned, error = _planned(machine, gpu, wanted,
                                      parsed_args.mode_only)
            rows.append({'index': index, 'address': str(gpu.address),
                         'error': error,
                         **(planned.to_dict() if planned else {})})
            differ |= error is not None or not planned.is_empty
            if parsed_args.output_format == 'text' and planned:
                self.write('\n'.join(planned.lines()))
            if error:
                output.say(f'GPU {index} ({gpu.address}): {error}')
        if parsed_args.output_format != 'text':
            self.write_value(rows, parsed_args.output_format)
        output.say('The layout is not in effect.' if differ
                   else 'The layout is in effect.')
        return int(differ)


def _planned(machine, gpu, wanted, mode_only):
    """Return how a GPU would change, and what is wrong; None for neither."""
    record = machine.records.read(gpu.address).change
    interrupted = record and f'an earlier change was interrupted: {record}'
    now = machine.current(gpu)
    try:
        return machine.applier.plan(
            now, wanted, apply.Options(mode_only=mode_only)), interrupted
    except exception.GpuDriverError as error:
        return None, '; '.join(filter(None, (interrupted, str(error))))


class ExportLayout(LayoutCommand):
    """Write the current layout of the GPUs as a layout file."""

    formats = ('yaml', 'json')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '-l', '-c', '--config-label', metavar='NAME',
            default='current',
            help='name of the entry (default: %(default)s)')
        parser.add_argument(
            '--skip-unreachable', action='store_true',
            help='leave out GPUs that cannot be read, instead of failing')
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine.for_changes(links=False)
        left_out = (_unreachable(machine) if parsed_args.skip_unreachable
                    else [])
        machine.reachable(gpu for index, gpu in enumerate(machine.gpus)
                          if index not in left_out)
        now = [gpu if index in left_out else machine.current(gpu)
               for index, gpu in enumerate(machine.gpus)]
        file = layout_state.export(now, parsed_args.config_label,
                                   left_out=left_out)
        layout_state.check_described(now, file, {
            index: machine.transactions.in_use(gpu)
            for index, gpu in enumerate(now) if index not in left_out})
        _write_file(self, parsed_args, file)


class GenerateLayouts(LayoutCommand):
    """Write a file with all sensible layouts for this host's GPUs."""

    formats = ('yaml', 'json')

    def take_action(self, parsed_args):
        machine = self.app.machine.for_changes(links=False)
        left_out = _unreachable(machine)
        gpus = {index: gpu for index, gpu in enumerate(machine.gpus)
                if index not in left_out}
        for index, gpu in gpus.items():
            layout_file.check_placements(gpu, layout_yaml.place_in(
                'this host', f'GPU {index}'))
        _write_file(self, parsed_args, layout_state.generate(
            gpus.values()))


def wanted_of(machine: context.Machine, parsed_args
              ) -> list[tuple[int, model.Gpu, target.Wanted]]:
    """Return the index, the GPU and the wanted layout for each chosen GPU.

    All GPUs are checked before one is changed. The function leaves out GPUs
    that the operator excluded and prints their names. It also prints which
    boards do not support MIG and are not changed.
    """
    entry = layout_file.LayoutFile.parse(
        *output.read_text(parsed_args.layout_file)).entry(
            parsed_args.selected_config)
    indices = entry.chosen(machine.gpus)
    for index in indices:
        if machine.ignores(machine.gpus[index]):
            output.say(f'{machine.name(machine.gpus[index])} is in [gpu] '
                       'ignored_devices and left alone.')
    indices = tuple(index for index in indices
                    if not machine.ignores(machine.gpus[index]))
    machine.reachable(machine.gpus[index] for index in indices)
    found = entry.for_chosen(machine.gpus, indices)
    for index, wanted in found.items():
        if wanted.without_mig:
            output.say(f'{machine.name(machine.gpus[index])} does not '
                       'support MIG and is left alone.')
    return [(index, machine.gpus[index], wanted)
            for index, wanted in sorted(found.items())]


def _unreachable(machine):
    """Return the indices of unreachable GPUs; print that they are left out.
    """
    found = []
    for index, gpu in enumerate(machine.gpus):
        reason = choice.obstacle(machine.host, gpu)
        if reason:
            found.append(index)
            output.say(f'{reason}; it is left out.')
    return found


def _write_file(asked, parsed_args, file):
    if parsed_args.output_format == 'json':
        asked.write_value(file.to_dict(), 'json')
    else:
        asked.write(file.dump())
