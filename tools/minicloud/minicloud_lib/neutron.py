# SPDX-License-Identifier: Apache-2.0

"""A substitute for Neutron, in a cloud without networks."""

from __future__ import annotations

from minicloud_lib import settings as settings_module
from minicloud_lib import steps
from minicloud_lib import uwsgi


def parts(settings: settings_module.Settings) -> list[steps.Service]:
    return [uwsgi.service(settings, 'neutron', 'neutron',
                          'minicloud_lib.neutron_application', ())]
