# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu usage``: GPU-hours of all hosts, from Prometheus."""

from __future__ import annotations

import functools
import math
import os

from oslo_utils import uuidutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver import prometheus
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.osc import base

_HOUR = 3600.0
_SECONDS = 60.0
"""How long Prometheus may take to answer."""
_URL = 'CYBORG_GPU_PROMETHEUS_URL'
_TIME = 'cyborg_gpu_assigned_seconds_total'
_ALIVE = 'cyborg_gpu_exporter_build_info'
_SERIES = 'Hostname, address, UUID, profile, project'
_LABELS = {'project': ('project',), 'profile': ('profile',),
           'host': ('Hostname',), 'gpu': ('Hostname', 'address')}
"""By key to sum by. The address of a GPU is unique only on its host."""
_COLUMNS = {'project': ('Project', 'Project ID'), 'profile': ('Profile',),
            'Hostname': ('Host',), 'address': ('GPU',)}


class ShowUsage(base.Lister):
    """Show how many GPU-hours each project had.

    Asks Prometheus, which has to scrape "cyborg-gpu exporter" on each GPU
    host. A vGPU or slice is counted from the end of its bind until Cyborg
    gives it back, a whole GPU to some seconds. The exit code is 1 if
    Prometheus has no metrics of a GPU host for the period.
    """

    brief = ('Project', 'Profile', 'Host', 'GPU', 'Hours')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('--project', metavar='PROJECT',
                            help='count only this project, by name or UUID')
        moments.add_period(parser)
        parser.add_argument(
            '--by', choices=tuple(_LABELS), action='append',
            help='show the sum for each of these; may be repeated (default: '
                 'project and profile)')
        parser.add_argument(
            '--prometheus-url', metavar='URL', default=os.environ.get(_URL),
            help='where Prometheus is, such as http://prometheus:9090 '
                 f'(Env: {_URL})')
        return parser

    def take_action(self, parsed_args):
        if not parsed_args.prometheus_url:
            raise exception.InvalidValue(
                what='--prometheus-url', value='', expected='expected the URL '
                f'of Prometheus, also in the environment variable {_URL}. The '
                'page "GPU-hours" of the operator guide says what Prometheus '
                'needs')
        start, end = moments.period(parsed_args.start, parsed_args.end)
        # The start is 0 for everything that is recorded.
        span = f'{max(1, math.ceil(end - start))}s'
        ask = functools.partial(
            prometheus.query, parsed_args.prometheus_url,
            seconds=_SECONDS, at=end)
        labels = tuple(dict.fromkeys(
            label for key in parsed_args.by or ('project', 'profile')
            for label in _LABELS[key]))
        chosen = ''
        if parsed_args.project:
            chosen = f'project="{self._project(parsed_args.project)}"'
        # Several jobs may scrape an exporter, and must not count twice.
        found = ask(
            f'sum by ({", ".join(labels)}) (max by ({_SERIES}) '
            f'(increase({_TIME}{{{chosen}}}[{span}])))', labels)
        self._say_missing({host for host, in ask(
            f'count by (Hostname) (count_over_time({_ALIVE}[{span}]))',
            ('Hostname',))})
        names = (self.cloud.attempt(state.project_names, self.cloud,
                                    complain=base.say)
                 if 'project' in labels else None) or {}
        return (tuple(column for label in labels
                      for column in _COLUMNS.get(label, ()))
                + ('Seconds', 'Hours'), [
            (*_cells(labels, values, names), round(seconds, 1),
             round(seconds / _HOUR, 4))
            for values, seconds in sorted(found.items())])

    def _say_missing(self, known):
        """Name the hosts of which Prometheus has nothing in the period."""
        for host in hosts.host_names(self.cloud):
            if host not in known:
                base.say(f'Not counted: Prometheus has no metrics of host '
                         f'{host} in that period. It has to scrape '
                         f'"cyborg-gpu exporter" there.')
                self.code = 1

    def _project(self, name):
        """Return the UUID of a project, which may have been deleted."""
        if uuidutils.is_uuid_like(name):
            # The format of Keystone.
            return name.replace('-', '').lower()
        return state.project(self.cloud, name)


def _cells(labels, values, names):
    for label, value in zip(labels, values, strict=True):
        if label == 'project':
            yield output.Optional(names.get(value, value) or None)
        yield output.Optional(value or None)
