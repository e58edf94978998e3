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

"""``openstack gpu usage``: GPU-hours of all hosts."""

from __future__ import annotations

import argparse
import os

from oslo_utils import uuidutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cloud.usage import exporters
from cyborg_gpu_driver.cloud.usage import projects
from cyborg_gpu_driver.cloud.usage import sums
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.osc import base

_HOUR = 3600.0
_URL = 'CYBORG_GPU_EXPORTER_URL'
_CREDENTIALS = 'CYBORG_GPU_EXPORTER_CREDENTIALS'
_COLUMNS = {'project': ('Project', 'Project ID'), 'profile': ('Profile',),
            'server': ('Server',), 'host': ('Host',), 'gpu': ('GPU',)}


class ShowUsage(base.Lister):
    """Show how many GPU-hours each project had.

    Asks "cyborg-gpu exporter" on each GPU host, which reads the records of
    the host. A vGPU or slice is counted from the end of its bind until Cyborg
    gives it back, to the second; a whole GPU to the minute. Projects that no
    host knows are looked up in Nova, which also knows deleted servers until
    its database is archived. The exit code is 1 if a host does not answer or
    does not have all records of the period.
    """

    brief = ('Project', 'Profile', 'Server', 'Host', 'GPU', 'Count', 'Hours')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('--project', metavar='PROJECT',
                            help='count only this project, by name or UUID')
        moments.add_period(parser)
        parser.add_argument(
            '--by', choices=sums.KEYS, action='append',
            help='show the sum for each of these; may be repeated (default: '
                 'project and profile)')
        parser.add_argument(
            '--host', metavar='HOST', action='append', dest='hosts',
            help='ask this host, such as one that was removed, instead of '
                 'those that Placement knows; may be repeated')
        _add_exporter(parser)
        return parser

    def take_action(self, parsed_args):
        start, end = moments.period(parsed_args.start, parsed_args.end)
        ask = _exporters(parsed_args)
        by = _keys(parsed_args)
        project = parsed_args.project and self._project(parsed_args.project)
        asked = parsed_args.hosts or hosts.names(self.cloud)
        if not asked:
            base.say('Placement has no host with GPUs.')
        found = self._answers(ask, asked, start, end)
        owners, names = {}, {}
        if 'project' in by or project is not None:
            owners = self._owners(sums.unknown(found), start)
        if 'project' in by:
            names = self._names()
        if project is not None:
            self._say_unknown(sums.total(found, (), owners, ''))
        return (tuple(column for key in by for column in _COLUMNS[key])
                + ('Count', 'Seconds', 'Hours'), [
            (*_cells(item.keys, names), item.count, item.seconds,
             round(item.seconds / _HOUR, 4))
            for item in sums.total(found, by, owners, project)])

    def _answers(self, ask, names, start, end):
        """Return the answers of hosts; report those that are incomplete."""
        found = []
        for answer in ask.ask(tuple(dict.fromkeys(names)), start, end,
                              lambda done, total: base.show_progress(
                                  done, total, 'hosts')):
            if answer.found is None:
                base.say(f'Not counted: {answer.reason}')
                self.code = 1
                continue
            for text in answer.found.missing:
                base.say(f'Host {answer.host}: {text}')
                self.code = 1
            found.append(answer.found)
        return found

    def _project(self, name):
        """Return the UUID of a project, which may have been deleted."""
        if uuidutils.is_uuid_like(name):
            # The format of Keystone.
            return name.replace('-', '').lower()
        return state.project(self.cloud, name)

    def _owners(self, servers, start):
        try:
            return projects.of_servers(self.cloud, servers, start)
        except exception.CloudError as error:
            base.say(f'{error}. Projects that only Nova knows are missing.')
            self.code = 1
            return {}

    def _names(self):
        try:
            return state.project_names(self.cloud)
        except exception.CloudError as error:
            base.say(str(error))
            return {}

    @staticmethod
    def _say_unknown(found):
        for item in found:
            base.say(f'Not counted: {item.seconds / _HOUR:.4f} hours of '
                     'servers whose project is unknown.')


def _add_exporter(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group('exporters')
    group.add_argument(
        '--exporter-url', metavar='URL',
        default=os.environ.get(_URL) or exporters.URL,
        help='where the exporters are, with {host} for the name of the host '
             f'(default: {exporters.URL}) (Env: {_URL})')
    group.add_argument(
        '--credentials', metavar='FILE',
        help='file with USER:PASSWORD for the exporters in its first line '
             f'(Env: {_CREDENTIALS}, with USER:PASSWORD)')
    group.add_argument(
        '--cacert', metavar='FILE',
        help='CA certificates that verify the exporters (default: '
             'those that this machine trusts)')
    group.add_argument('--cert', metavar='FILE',
                       help='client certificate for exporters that '
                       'require one')
    group.add_argument('--key', metavar='FILE',
                       help='key of --cert, unless it is in the same file')
    group.add_argument(
        '--timeout', metavar='SECONDS', default=60,
        type=moments.seconds(1, 3600),
        help='how long each host may take to answer (default: %(default)s)')


def _exporters(parsed_args):
    return exporters.Exporters(
        parsed_args.exporter_url, _credentials(parsed_args.credentials),
        exporters.tls(parsed_args.cacert, parsed_args.cert, parsed_args.key),
        parsed_args.timeout)


def _credentials(path):
    """Return USER:PASSWORD; None if there are no credentials."""
    if path is None:
        found = os.environ.get(_CREDENTIALS)
        what, value = _CREDENTIALS, '***'
    else:
        what, value = '--credentials', path
        try:
            with open(path, encoding='utf-8') as stream:
                found = stream.readline().rstrip('\r\n')
        except (OSError, UnicodeDecodeError) as error:
            raise exception.InvalidValue(
                what=what, value=path,
                expected=f'cannot be read: {error}') from error
    if found is None:
        return None
    if not found.partition(':')[2]:
        raise exception.InvalidValue(what=what, value=value,
                                     expected='expected USER:PASSWORD')
    return found


def _keys(parsed_args):
    """Return the keys to sum by; a GPU address needs its host."""
    keys = tuple(dict.fromkeys(parsed_args.by or ('project', 'profile')))
    if 'gpu' in keys and 'host' not in keys:
        place = keys.index('gpu')
        keys = (*keys[:place], 'host', *keys[place:])
    return keys


def _cells(keys, names):
    for key, value in keys.items():
        if key == 'project':
            yield columns.Optional(names.get(value, value) or None)
        yield columns.Optional(value or None)
