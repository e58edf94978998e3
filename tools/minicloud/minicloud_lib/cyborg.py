# SPDX-License-Identifier: Apache-2.0

"""Cyborg: API, conductor, and an agent for each host."""

from __future__ import annotations

import json
import pathlib
import sys
import time

from minicloud_lib import clients
from minicloud_lib import common
from minicloud_lib import error
from minicloud_lib import inifile
from minicloud_lib import nova
from minicloud_lib import probes
from minicloud_lib import schemas
from minicloud_lib import settings as settings_module
from minicloud_lib import steps
from minicloud_lib import uwsgi

_HOST = 'controller'
_AGENT = 'minicloud_lib.cyborg_agent'
_POLL = 0.5
_REPORT = 900
"""Seconds until a host's first report must be in Placement."""


def parts(settings: settings_module.Settings) -> list:
    config = settings.etc('cyborg', 'cyborg.conf')
    agents = [agent(host) for host in settings.hosts]
    return [
        steps.Step('cyborg-files', (), lambda: _configure(settings)),
        schemas.step(settings, 'cyborg', 'openstack-cyborg',
                     ('cyborg-files', 'mariadb'),
                     lambda: steps.command(settings, 'cyborg-schema', [
                         steps.binary('cyborg-dbsync'), '--config-file',
                         str(config), 'upgrade'])),
        uwsgi.service(settings, 'cyborg-api', 'cyborg', 'cyborg.wsgi.api',
                      ('cyborg-schema', 'rabbitmq', 'identity'),
                      arguments=f'--config-file {config}',
                      threads=uwsgi.MANY_THREADS),
        _daemon(settings, 'cyborg-conductor', config, 'cyborg-conductor',
                ('cyborg-schema', 'rabbitmq', 'identity')),
        *(_agent_service(settings, host) for host in settings.hosts),
        steps.Step('gpus', (*agents, 'cyborg-api'),
                   lambda: _wait_for_gpus(settings), once=False),
    ]


def agent(host: str) -> str:
    """Return the name of the service that reports a host's GPUs."""
    return f'cyborg-agent-{host}'


def agent_path(settings: settings_module.Settings, host: str
               ) -> pathlib.Path:
    """Return the configuration file of a host's agent and ``cyborg-gpu``."""
    return settings.etc('cyborg', f'{agent(host)}.conf')


def _daemon(settings, program, config, queue, needs):
    return steps.Service(
        program, needs,
        [steps.binary(program), '--config-file', str(config)],
        probes.consumer(settings, queue))


def _agent_service(settings, host):
    return steps.Service(
        # At its start, the agent looks for the provider of its host.
        agent(host), ('cyborg-conductor', nova.compute(host)),
        [sys.executable, '-m', _AGENT, str(settings.report_interval),
         '--config-file', str(agent_path(settings, host))],
        probes.consumer(settings, f'cyborg-agent.{host}'),
        {'PYTHONPATH': steps.PYTHON_PATH})


def _configure(settings):
    inifile.write(settings.etc('cyborg', 'cyborg.conf'), inifile.merge(
        _sections(settings, _HOST),
        common.sections(settings, f'{_HOST}/cyborg', 'cyborg'),
        {'database': {'connection': common.database_url(settings, 'cyborg',
                                                        'cyborg')},
         'api': {'api_paste_config': steps.shipped(
             'cyborg/api-paste.ini')}}))
    policies = inifile.read(pathlib.Path(settings.gpu_config))
    for host, machine in settings.hosts.items():
        state = settings.data(host, 'gpu')
        state.mkdir(parents=True, exist_ok=True)
        inifile.write(agent_path(settings, host), inifile.merge(
            _sections(settings, host), policies,
            {'agent': {'enabled_drivers': 'cyborg_gpu_driver',
                       'resource_provider_name': host},
             'gpu': {'simulate': machine, 'state_path': state,
                     'simulate_state': settings.data(host, 'machine.json')},
             'gpu_cloud': {**common.login(settings, clients.ADMIN),
                           'project_name': clients.ADMIN}}))


def _sections(settings, host):
    login = common.login(settings, 'cyborg')
    return inifile.merge(
        common.sections(settings, f'{host}/cyborg'),
        {'DEFAULT': {'host': host},
         'placement': login, 'nova': login,
         # Without this option, privsep calls sudo.
         'cyborg_sys_admin': {
             'helper_command': steps.binary('privsep-helper')}})


def _wait_for_gpus(settings):
    """Wait until Placement has the providers that the agents report.

    :raises MinicloudError: if providers are missing in the end; names them.
    """
    expected = {item['provider_name']: host for host in settings.hosts
                for item in _report(settings, host)}
    placement = clients.connect(settings, clients.ADMIN).placement
    deadline = time.monotonic() + _REPORT
    while True:
        found = {provider.name for provider
                 in placement.resource_providers()}
        missing = sorted(set(expected) - found)
        if not missing:
            return
        if time.monotonic() > deadline:
            raise error.MinicloudError(
                f'not in Placement after {_REPORT} s: {", ".join(missing)}; '
                f'see {settings.log(agent(expected[missing[0]]))}')
        time.sleep(_POLL)


def _report(settings, host):
    rows = json.loads(steps.output(
        [steps.binary('cyborg-gpu'), '--config-file',
         str(agent_path(settings, host)), 'offer', 'list', '-f', 'json'],
        settings))
    return [row for row in rows if row['reported'] == 'yes']
