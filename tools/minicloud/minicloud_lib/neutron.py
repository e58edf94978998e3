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

"""A substitute for Neutron, in a cloud without networks."""

from __future__ import annotations

from minicloud_lib import settings as settings_module
from minicloud_lib import steps
from minicloud_lib import uwsgi


def parts(settings: settings_module.Settings) -> list[steps.Service]:
    return [uwsgi.service(settings, 'neutron', 'neutron',
                          'minicloud_lib.neutron_application', ())]
