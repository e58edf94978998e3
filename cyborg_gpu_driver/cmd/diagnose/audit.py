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

"""``cyborg-gpu audit list``: what servers had, and how it was cleaned."""

from __future__ import annotations

from typing import Any

from cliff import columns as cliff_columns
from oslo_utils import uuidutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program import audit


class Evidence(cliff_columns.FormattableColumn):
    """The evidence of a record: one fact per line, without unknown facts."""

    def human_readable(self) -> str:
        return '\n'.join(f'{name}: {value}' for name, value
                         in _flat(self._value) if value not in (None, ''))

    def machine_readable(self) -> dict[str, Any]:
        return self._value


class ListAudit(output.Lister):
    """List the GPUs and vGPUs that servers had, and the cleanups after them.

    The oldest entry comes first.
    """

    brief = ('time', 'gpu', 'what', 'subject')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--gpu', metavar='GPU',
            help=f'show only this GPU, by {choice.WAYS}; for a GPU that is '
                 'no longer present, give its full PCI address')
        parser.add_argument(
            '--handle', metavar='UUID',
            help='show only this attach handle, or only this server with a '
                 'whole GPU')
        parser.add_argument(
            '--since', metavar='TIME',
            help=f'show only entries since this time: {moments.WAYS}')
        return parser

    def take_action(self, parsed_args):
        since = moments.parse('--since', parsed_args.since)
        if parsed_args.handle and not uuidutils.is_uuid_like(
                parsed_args.handle):
            raise exception.InvalidValue(
                what='--handle', value=parsed_args.handle,
                expected='expected the UUID of an attach handle or server')
        address = parsed_args.gpu and self._address(parsed_args.gpu)
        reading = audit.read(gpu_conf.state_path(self.app.machine.conf))
        if reading.bad:
            cmd_machine.say(f'{reading.bad} line(s) of the audit record '
                            'cannot be read and are left out.')
        return (('time', 'gpu', 'what', 'subject', 'evidence'), [
            (output.Time(record.time), str(record.gpu),
             record.what, output.Optional(record.subject or None),
             Evidence(record.evidence))
            for record in reading.records
            if (since is None or record.time >= since)
            and address in (None, record.gpu)
            and _is_for(record.subject, parsed_args.handle)])

    def _address(self, text):
        try:
            return model.PciAddress.parse(text)
        except exception.InvalidPciAddress:
            return self.app.machine.gpu(text).address


def _is_for(subject, wanted):
    return wanted is None or wanted.lower() in subject.lower().split(', ')


def _flat(evidence):
    """Yield pairs of name and value, also of nested mappings."""
    for name, value in evidence.items():
        if isinstance(value, dict):
            yield from ((f'{name} {inner}', fact)
                        for inner, fact in _flat(value))
        else:
            yield name, value
