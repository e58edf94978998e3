# SPDX-License-Identifier: Apache-2.0

"""Ironic for bare metal: API and conductor in one process.

Its nodes are of the type ``fake-hardware``, so power, boot and network exist
only in Ironic's state. The user who enrolls a node also runs the
ironic-python-agent that carries out the agent's steps.
"""

from __future__ import annotations

from minicloud_lib import common
from minicloud_lib import inifile
from minicloud_lib import probes
from minicloud_lib import schemas
from minicloud_lib import settings as settings_module
from minicloud_lib import steps

_INTERFACES = {
    'bios': 'no-bios', 'boot': 'fake', 'console': 'no-console',
    # This interface runs the agent's steps and writes no image.
    'deploy': 'custom-agent', 'firmware': 'no-firmware', 'inspect': 'agent',
    'management': 'fake', 'network': 'noop', 'power': 'fake',
    'raid': 'no-raid', 'rescue': 'no-rescue', 'storage': 'noop',
    'vendor': 'no-vendor'}


def parts(settings: settings_module.Settings) -> list:
    if not settings.baremetal:
        return []
    config = settings.etc('ironic', 'ironic.conf')
    return [
        steps.Step('ironic-files', (), lambda: _configure(settings, config)),
        schemas.step(settings, 'ironic', 'ironic',
                     ('ironic-files', 'mariadb'),
                     lambda: steps.command(settings, 'ironic-schema', [
                         steps.binary('ironic-dbsync'), '--config-file',
                         str(config), 'create_schema'])),
        # Ironic looks for itself in keystone's catalogue.
        steps.Service('ironic', ('ironic-schema', 'identity'),
                      [steps.binary('ironic'), '--config-file', str(config)],
                      probes.http(settings.url('ironic'))),
    ]


def _configure(settings, path):
    login = common.login(settings, 'ironic')
    directory = settings.data('ironic')
    directory.mkdir(parents=True, exist_ok=True)
    inifile.write(path, inifile.merge(
        common.sections(settings, 'ironic', 'ironic'),
        {'DEFAULT': {
            'enabled_hardware_types': 'fake-hardware',
            **{f'enabled_{kind}_interfaces': name
               for kind, name in _INTERFACES.items()},
            'host': 'ironic', 'my_ip': settings_module.ADDRESS,
            # API and conductor are in one process.
            'rpc_transport': 'none', 'tempdir': directory},
         'agent': {'require_tls': False, 'deploy_logs_collect': 'never'},
         'api': {'host_ip': settings_module.ADDRESS,
                 'port': settings.port('ironic'),
                 'public_endpoint': settings.url('ironic'),
                 # Between two calls, the agent waits for at most half of
                 # this time.
                 'ramdisk_heartbeat_timeout': 1},
         'conductor': {'graceful_shutdown_timeout': 1,
                       'node_locked_retry_attempts': 60},
         'database': {'connection': common.database_url(
             settings, 'ironic', 'ironic')},
         'deploy': {'erase_devices_priority': 0,
                    'erase_devices_metadata_priority': 0},
         'inspector': {'hooks': '$default_hooks,nvidia-gpus',
                       # The fake boot interface cannot manage the boot.
                       'require_managed_boot': False},
         'nova': {'send_power_notifications': False},
         'neutron': login, 'service_catalog': login,
         # An administrator has rights in all projects, as in the other
         # services.
         'oslo_policy': {'enforce_scope': False,
                         'enforce_new_defaults': False}}))
