# SPDX-License-Identifier: Apache-2.0

"""Nova: API, conductor, scheduler, and a compute service for each host."""

from __future__ import annotations

import sys

from minicloud_lib import common
from minicloud_lib import inifile
from minicloud_lib import probes
from minicloud_lib import schemas
from minicloud_lib import settings as settings_module
from minicloud_lib import steps
from minicloud_lib import uwsgi

_HOST = 'controller'
_CELL = 'cell1'
_URL = '{scheme}://{username}:{password}@{hostname}:{port}'
"""Nova fills in the URLs of its configuration file, so that the mappings of
cells fit each cloud."""
BAREMETAL = 'baremetal'
"""The host name of the compute service for Ironic's nodes."""
_MANAGE = 'minicloud_lib.nova_manage'
_COMPUTE = 'minicloud_lib.nova_compute'


def parts(settings: settings_module.Settings) -> list:
    api = settings.etc('nova', 'nova.conf')
    hosts = [*settings.hosts, *([BAREMETAL] if settings.baremetal else [])]
    return [
        steps.Step('nova-files', (), lambda: _configure(settings)),
        schemas.step(settings, 'nova', 'nova', ('nova-files', 'mariadb'),
                     lambda: _make_schema(settings)),
        uwsgi.service(
            settings, 'nova-api', 'nova', 'nova.wsgi.osapi_compute',
            ('nova-schema', 'rabbitmq'),
            {'OS_NOVA_CONFIG_DIR': str(settings.etc('nova'))},
            threads=uwsgi.MANY_THREADS),
        # nova-conductor logs in to keystone when it starts.
        _daemon(settings, 'nova-conductor', api, 'conductor',
                ('nova-schema', 'rabbitmq', 'identity')),
        _daemon(settings, 'nova-scheduler', api, 'scheduler',
                ('nova-schema', 'rabbitmq', 'identity')),
        *(_compute_service(settings, host) for host in hosts),
        steps.Step('nova-hosts', tuple(map(compute, hosts)),
                   lambda: _manage(settings, 'nova-hosts', (
                       # By service, to include hosts that have no node yet.
                       ('cell_v2', 'discover_hosts', '--by-service'),))),
    ]


def compute(host: str) -> str:
    """Return the name of the service that runs a host's servers."""
    return f'nova-compute-{host}'


def _daemon(settings, program, config, queue, needs):
    return steps.Service(
        program, needs,
        [steps.binary(program), '--config-file', str(config)],
        probes.consumer(settings, queue))


def _compute_service(settings, host):
    return steps.Service(
        compute(host), ('nova-conductor', 'placement', *(
            ['ironic'] if host == BAREMETAL else [])),
        [sys.executable, '-m', _COMPUTE, '--config-file',
         str(_compute_path(settings, host))],
        probes.consumer(settings, f'compute.{host}'),
        {'PYTHONPATH': steps.PYTHON_PATH})


def _configure(settings):
    inifile.write(settings.etc('nova', 'nova.conf'), inifile.merge(
        _sections(settings, _HOST),
        # A compute service has neither database nor API.
        common.sections(settings, _HOST, 'nova'),
        {'api_database': {'connection': _database(settings, 'nova_api')},
         'database': {'connection': _database(settings, 'nova_cell1')},
         'conductor': {'workers': 1}, 'scheduler': {'workers': 1},
         'quota': {'driver': 'nova.quota.UnifiedLimitsDriver'},
         'oslo_limit': {
             **common.login(settings, 'nova'),
             'endpoint_service_type': 'compute',
             'endpoint_region_name': common.REGION}}))
    paste = settings.etc('nova', 'api-paste.ini')
    paste.unlink(missing_ok=True)
    paste.symlink_to(steps.shipped('nova/api-paste.ini'))
    for host in settings.hosts:
        settings.data(host, 'nova').mkdir(parents=True, exist_ok=True)
        inifile.write(_compute_path(settings, host),
                      _sections(settings, host))
    if settings.baremetal:
        inifile.write(
            _compute_path(settings, BAREMETAL), inifile.merge(
                _sections(settings, BAREMETAL),
                {'DEFAULT': {'compute_driver': 'ironic.IronicDriver',
                             # Seconds until it sees the changes of a node.
                             'update_resources_interval': 5},
                 'ironic': common.login(settings, 'ironic')}))


def _sections(settings, host):
    login = common.login(settings, 'nova')
    return inifile.merge(
        common.sections(settings, f'{host}/nova'),
        {'DEFAULT': {
            'host': host, 'my_ip': settings_module.ADDRESS,
            # With this driver, the node keeps its UUID in state_path.
            'compute_driver': 'fake.FakeDriverWithoutFakeNodes',
            # A shelved server releases its host and its GPU at once.
            'shelved_offload_time': 0},
         'placement': login, 'neutron': login, 'cyborg': login,
         'glance': {'region_name': common.REGION},
         # Cyborg lets only services bind and unbind.
         'service_user': {**login, 'send_service_user_token': True},
         'vnc': {'enabled': False}})


def _compute_path(settings, host):
    return settings.etc('nova', f'{compute(host)}.conf')


def _database(settings, name):
    return common.database_url(settings, 'nova', name)


def _make_schema(settings):
    _manage(settings, 'nova-schema', (
        ('api_db', 'sync'),
        ('cell_v2', 'map_cell0', '--database_connection',
         f'{_URL}/nova_cell0?{{query}}'),
        ('db', 'sync'),
        ('cell_v2', 'create_cell', '--name', _CELL, '--database_connection',
         f'{_URL}/{{path}}?{{query}}', '--transport-url', f'{_URL}/{{path}}')))


def _manage(settings, name, commands):
    words = [word for command in commands for word in ('--', *command)]
    steps.command(
        settings, name,
        [sys.executable, '-m', _MANAGE,
         str(settings.etc('nova', 'nova.conf')), *words],
        {'PYTHONPATH': steps.PYTHON_PATH,
         'OS_NOVA_DISABLE_EVENTLET_PATCHING': 'true'})
