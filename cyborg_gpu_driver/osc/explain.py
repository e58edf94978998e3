# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu explain``: why a request can or cannot be scheduled."""

from __future__ import annotations

from cyborg_gpu_driver.cloud import question
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.osc import base

_NEAREST = 10
"""The number of hosts in a table without --all."""
_COLUMNS = ('Host', 'GPU', 'Profile', 'Group', 'Verdict', 'What is missing',
            'What to do')
_BRIEF = frozenset(_COLUMNS) - {'Profile', 'Group'}
"""Columns of a table without --long."""
_YES, _NO, _HINT = 'yes', 'no', 'look'


class ExplainRequest(base.ShowOne):
    """Show whether a server with GPUs can be scheduled now, and why not.

    Names everything that is missing on each host and GPU, and lists the host
    that is closest to a fit first. The exit code is 0 if the request can be
    scheduled, and 1 if it cannot or if the command could not find out;
    "schedulable" in the JSON output tells which. With --server, the command
    checks one more server of that flavor, and also explains the failure of
    that server.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument(
            '--flavor', metavar='<flavor>', help='name or id of a flavor')
        which.add_argument(
            '--device-profile', metavar='<device-profile>',
            help='name of a device profile; vCPUs, memory and disk are not '
                 'considered')
        which.add_argument(
            '--server', metavar='<server>',
            help='name or UUID of a server, of any project')
        parser.add_argument(
            '--host', metavar='<host>',
            help='hypervisor_hostname of the only compute node to consider')
        parser.add_argument(
            '--all', action='store_true',
            help=f'examine all hosts of the cloud, not only {question.MOST}, '
                 'those with candidates in Placement first, and show all '
                 f'in the table, not only the {_NEAREST} closest')
        parser.add_argument(
            '--long', action='store_true',
            help='show all columns in the table, however wide it gets')
        return parser

    def take_action(self, parsed_args):
        self.found = question.answer(
            self.cloud, parsed_args.flavor, parsed_args.device_profile,
            parsed_args.server, parsed_args.host,
            None if parsed_args.all else question.MOST, base.show_progress)
        self.code = int(not self.found.schedulable)
        document = self.found.document()
        return tuple(document), tuple(
            output.Structure(value) if isinstance(value, list) else value
            for value in document.values())

    def produce_output(self, parsed_args, column_names, data):
        """Print the sentence and a table, or all data in other formats."""
        if parsed_args.formatter != 'table':
            return super().produce_output(parsed_args, column_names, data)
        self.app.stdout.write(self.found.sentence + '\n')
        shown = self.found.hosts
        if not parsed_args.all:
            shown = shown[:_NEAREST]
        rows = list(_rows(self.found, shown))
        if rows:
            self._show(rows, parsed_args)
        if len(shown) < len(self.found.hosts):
            base.say(f'{len(self.found.hosts) - len(shown)} more hosts: '
                     'use --all to show them')
        for item in self.found.unchecked:
            base.say(f'Not considered: {item}')
        return 0

    def _show(self, rows, parsed_args):
        names = [name for name in _COLUMNS
                 if parsed_args.long or name in _BRIEF]
        shown = [_COLUMNS.index(name) for name in names]
        if not parsed_args.long:
            output.fit(parsed_args, self.app.stdout)
        self.formatter.emit_list(
            names, [[row[index] for index in shown] for row in rows],
            self.app.stdout, parsed_args)


def _rows(verdict, hosts):
    for finding in verdict.findings:
        yield '-', '-', '-', '-', *_finding(finding)
    for host in hosts:
        for finding in host.findings:
            yield host.name, '-', '-', 'host', *_finding(finding)
        for candidate in host.candidates:
            place = candidate.provider.place
            where = (host.name, place.gpu if place else '-',
                     place.label if place else candidate.provider.name,
                     candidate.group)
            if not candidate.findings:
                yield *where, _YES, '', ''
            for finding in candidate.findings:
                yield *where, *_finding(finding)
        if host.accepted and verdict.schedulable and not host.candidates:
            yield host.name, '-', '-', 'host', _YES, '', ''


def _finding(finding):
    return (_NO if finding.blocks else _HINT,
            f'{finding.reason.name}: {finding.text}', finding.remedy)
