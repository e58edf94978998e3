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

"""``cyborg-gpu firstboot``: partitions a bare-metal server at each boot."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os

from cliff import command
from oslo_utils import timeutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.baremetal import first_boot
from cyborg_gpu_driver.baremetal import layout_sources
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.conf import policies

_LAYOUT_FILE = f'/{cleaning.LAYOUT_PATH}'
_DRIVER_TIMEOUT = 300
_METADATA_TIMEOUT = 30


class FirstBoot(command.Command):
    """Partition the GPUs of a bare-metal server as its layout says.

    The layout is read from the image, the config drive or the metadata of the
    server, in this order; layouts in several places must agree. Without a
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
            '--show', action='store_true',
            help='show the last report and do nothing else; the exit code is '
                 'that of the report, or 1 if the report is from before the '
                 'last reboot')
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
            '--config-drive', type=_directory, metavar='DIRECTORY',
            help='directory at which a config drive is mounted (default: the '
                 'block device with the label config-2 is read)')
        parser.add_argument(
            '--metadata-url', type=_url, metavar='URL',
            default=layout_sources.URL,
            help='URL of the documents of the metadata service (default: '
                 f'{layout_sources.URL})')
        parser.add_argument(
            '--metadata-timeout', type=moments.seconds(0), metavar='SECONDS',
            default=_METADATA_TIMEOUT,
            help='how long to try the metadata service; 0 skips it '
                 f'(default: {_METADATA_TIMEOUT})')
        return parser

    def take_action(self, parsed_args):
        if parsed_args.show:
            policies.read(self.app.conf)
            return self._show(parsed_args, self.app.machine)
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
        try:
            first_boot.write_report(node.state_path, report)
        except exception.JournalError as error:
            output.say(f'This report cannot be saved: {error}')
        self._write(parsed_args, report)
        self._say_result(parsed_args, report.summary())
        return report.result.code

    def _show(self, parsed_args, node):
        report = first_boot.read_report(node.state_path)
        if report is None:
            output.say('There is no report: the first boot has not run '
                       'yet.')
            return 1
        self._write(parsed_args, report)
        if report.boot_id != node.platform.boot_id():
            output.say(f'This report is of {report.time}, before the '
                       'last reboot.')
            return 1
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
        self._state_path = node.state_path
        self._machine = node.platform
        self._boot = first_boot.FirstBoot(node, output.say)
        self._has_drive = False
        self._missed: first_boot.Report | None = None
        self._no_service: str | None = None

    def report(self) -> first_boot.Report:
        """Search for the layout and apply it; errors are in the report."""
        found = layout_sources.Search()
        try:
            if not self._boot.has_gpus():
                outcome = first_boot.Outcome(first_boot.Result.NO_GPU)
            else:
                found = self._search()
                outcome = self._cut(found)
        except exception.DocumentError as error:
            outcome = first_boot.Outcome(first_boot.Result.UNUSABLE,
                                         str(error))
        except exception.GpuDriverError as error:
            outcome = first_boot.Outcome(first_boot.Result.FAILED, str(error))
        # The next boot must also know that this layout is missing.
        known = found.found or self._missed
        return first_boot.Report(
            outcome.result, timeutils.utcnow(True).isoformat('T', 'seconds'),
            self._machine.boot_id(),
            source=known.source if known else None,
            layout=known.layout if known else None,
            others=tuple(other.source for other in found.others),
            notes=found.notes, error=outcome.error, gpus=outcome.gpus,
            no_service=self._no_service)

    def _cut(self, search):
        found = search.found
        if found is None:
            return first_boot.Outcome(first_boot.Result.NO_LAYOUT)
        output.say(first_boot.printable(
            f'Found the layout {found.layout} in {found.source}.'))
        return self._boot.partition(found, self._args.timeout, search.others)

    def _search(self):
        found = layout_sources.search((
            layout_sources.in_file(self._args.layout_file or _LAYOUT_FILE),
            self._on_drive()))
        # The config drive of a server has the same data as the service.
        if found.found or self._has_drive or not self._args.metadata_timeout:
            return found
        return self._ask(self._last())

    def _ask(self, last):
        """Search for a layout in the metadata service.

        :param last: the report of the last boot, if there is one.
        :raises CloudError: if the service does not answer but had the
            layout of the last boot: then it is late, not absent.
        """
        url = self._args.metadata_url
        service = layout_sources.MetadataService(
            url, self._args.metadata_timeout,
            doubtful=last is not None and last.no_service == url)
        if last is None or not (last.source or '').startswith(service.url):
            last = None
        self._missed = last
        found = layout_sources.search((
            layout_sources.in_documents(service.read, service.url),))
        if service.silent is None:
            self._missed = None
            return found
        if last is not None:
            raise exception.CloudError(
                f'{service.url}: does not answer ({service.silent}), but '
                f'had the layout {last.layout} at the last boot')
        self._no_service = url
        return layout_sources.Search(notes=(
            f'There is no metadata service at {service.url}: '
            f'{service.silent}.',))

    def _last(self):
        """Return the last report; None if there is no readable report."""
        try:
            return first_boot.read_report(self._state_path)
        except exception.JournalError as error:
            output.say(str(error))
            return None

    def _on_drive(self):
        with self._drive() as directory:
            if directory is not None:
                self._has_drive = True
                yield from layout_sources.in_documents(
                    functools.partial(layout_sources.read, directory),
                    'config drive')

    def _drive(self):
        if self._args.config_drive is not None:
            return contextlib.nullcontext(self._args.config_drive)
        return layout_sources.opened()


def _file(text: str) -> str:
    if os.path.isfile(text):
        return text
    raise argparse.ArgumentTypeError(f'{text!r} is not a file')


def _directory(text: str) -> str:
    if os.path.isdir(text):
        return text
    raise argparse.ArgumentTypeError(f'{text!r} is not a directory')


def _url(text: str) -> str:
    try:
        return layout_sources.MetadataService(text, 0).url
    except exception.InvalidValue as error:
        raise argparse.ArgumentTypeError(str(error)) from error
