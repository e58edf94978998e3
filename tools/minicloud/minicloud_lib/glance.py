# SPDX-License-Identifier: Apache-2.0

"""Glance, which stores its images in files."""

from __future__ import annotations

from minicloud_lib import common
from minicloud_lib import inifile
from minicloud_lib import schemas
from minicloud_lib import settings as settings_module
from minicloud_lib import steps
from minicloud_lib import uwsgi


def parts(settings: settings_module.Settings) -> list:
    config = settings.etc('glance', 'glance-api.conf')
    return [
        steps.Step('glance-files', (), lambda: _configure(settings, config)),
        schemas.step(settings, 'glance', 'glance',
                     ('glance-files', 'mariadb'),
                     lambda: steps.command(settings, 'glance-schema', [
                         steps.binary('glance-manage'), '--config-file',
                         str(config), 'db_sync'])),
        uwsgi.service(
            settings, 'glance', 'glance', 'glance.wsgi.api',
            ('glance-schema',),
            {'OS_GLANCE_CONFIG_DIR': str(settings.etc('glance'))}),
    ]


def _configure(settings, path):
    for name in ('images', 'staging', 'tasks'):
        settings.data('glance', name).mkdir(parents=True, exist_ok=True)
    inifile.write(path, inifile.merge(
        common.sections(settings, 'glance', 'glance'),
        {'DEFAULT': {'enabled_backends': 'files:file'},
         'database': {'connection': common.database_url(settings, 'glance',
                                                        'glance')},
         'glance_store': {'default_backend': 'files'},
         'files': {'filesystem_store_datadir': settings.data('glance',
                                                             'images')},
         'os_glance_staging_store': {
             'filesystem_store_datadir': settings.data('glance', 'staging')},
         'os_glance_tasks_store': {
             'filesystem_store_datadir': settings.data('glance', 'tasks')},
         'paste_deploy': {
             'flavor': 'keystone',
             'config_file': steps.shipped(
                 'glance/glance-api-paste.ini')}}))
