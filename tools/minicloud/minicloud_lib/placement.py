# SPDX-License-Identifier: Apache-2.0

"""Placement."""

from __future__ import annotations

from minicloud_lib import common
from minicloud_lib import inifile
from minicloud_lib import settings as settings_module
from minicloud_lib import steps
from minicloud_lib import uwsgi


def parts(settings: settings_module.Settings) -> list:
    return [
        steps.Step('placement-files', (), lambda: _configure(settings)),
        uwsgi.service(
            settings, 'placement', 'placement', 'placement.wsgi.api',
            ('placement-files', 'mariadb'),
            {'OS_PLACEMENT_CONFIG_DIR': str(settings.etc('placement'))}),
    ]


def _configure(settings):
    inifile.write(settings.etc('placement', 'placement.conf'), inifile.merge(
        common.sections(settings, 'placement', 'placement'),
        {'placement_database': {
            'connection': common.database_url(settings, 'placement',
                                              'placement'),
            # The schema is made when the API starts.
            'sync_on_startup': True},
         # With more than one try, Placement 16 allocates more than exists:
         # the rows that a try inserted before it lost a race still exist in
         # the next try (_set_allocations), which takes them for an earlier
         # excess of the same consumer.
         #
         # Nova tries only the first candidate of a host. Without random
         # order, concurrent requests all try the same GPU.
         'placement': {'allocation_conflict_retry_count': 1,
                       'randomize_allocation_candidates': True}}))
