# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu firstboot``: partitions a bare-metal server at each boot."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os

from cliff import command

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.baremetal import first_boot
from cyborg_gpu_driver.baremetal import layout_sources
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.conf import policies

_LAYOUT_FILE = f'/{cleaning.LAYOUT_PATH}'
_DRIVER_TIMEOUT = 300


class FirstBoot(command.Command):
    """Partition the GPUs of a bare-metal server as its layout says.

    The layout is read from the image or from the metadata of the server, which
    cloud-init writes to a file; the one in the image comes first. Without a
    layout or a GPU, the command does nothing. Exits 1 if a GPU does not match
    the layout, and 2 if the layout cannot be used; then the GPUs are not
    changed. The last line is the result of the run, for the console of the
    server.
    """

    checks_options = False
    """The command checks the options itself, to report errors on the console.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '-f', '--format', choices=('text', 'json'), default='text',
            help='format of the report (default: text)')
        parser.add_argument(
            '--timeout', type=moments.seconds(0), metavar='SECONDS',
            default=_DRIVER_TIMEOUT,
            help='how long to wait for the NVIDIA driver (default: '
                 f'{_DRIVER_TIMEOUT})')
        parser.add_argument(
            '--layout-file', type=_file, metavar='FILE',
            help="layout file of one entry, in mig-parted's format "
                 f'(default: {_LAYOUT_FILE}, if it exists)')
        parser.add_argument(
            '--instance-data', type=_file, metavar='FILE',
            help="cloud-init's file of the server's metadata (default: "
                 f'{layout_sources.INSTANCE_DATA}, if it exists)')
        return parser

    def take_action(self, parsed_args):
        try:
            policies.read(self.app.conf)
            return self._boot(parsed_args, self.app.machine)
        except Exception as error:
            # The console must have a result, whatever has failed.
            self._say_result(parsed_args, first_boot.failure(error))
            raise

    def _boot(self, parsed_args, node):
        node.check_root('partition its GPUs')
        node.act_here()
        report = _Boot(parsed_args, node).report()
        self._write(parsed_args, report)
        self._say_result(parsed_args, report.summary())
        return report.result.code

    def _say_result(self, parsed_args, line):
        """Write the line for the console; JSON has this already."""
        if parsed_args.format != 'json':
            self.app.stdout.write(line + '\n')

    def _write(self, parsed_args, report):
        if parsed_args.format == 'json':
            text = json.dumps(report.to_dict(), indent=2)
        else:
            text = '\n'.join(report.lines())
        self.app.stdout.write(text + '\n')


class _Boot:
    """One run, from the search for a layout to the report."""

    def __init__(self, parsed_args, node):
        self._args = parsed_args
        self._boot = first_boot.FirstBoot(node, output.say)

    def report(self) -> first_boot.Report:
        """Search for the layout and apply it; errors are in the report."""
        try:
            return self._outcome()
        except exception.DocumentError as error:
            return first_boot.Report(first_boot.Result.UNUSABLE, str(error))
        except exception.GpuDriverError as error:
            return first_boot.Report(first_boot.Result.FAILED, str(error))

    def _outcome(self):
        if not self._boot.has_gpus():
            return first_boot.Report(first_boot.Result.NO_GPU)
        found = layout_sources.search(
            self._args.layout_file or _LAYOUT_FILE,
            self._args.instance_data or layout_sources.INSTANCE_DATA)
        if found is None:
            return first_boot.Report(first_boot.Result.NO_LAYOUT)
        output.say(first_boot.printable(
            f'Found the layout {found.layout} in {found.source}.'))
        return dataclasses.replace(
            self._boot.partition(self._args.timeout, found),
            source=found.source, layout=found.layout)


def _file(text: str) -> str:
    if os.path.isfile(text):
        return text
    raise argparse.ArgumentTypeError(f'{text!r} is not a file')
