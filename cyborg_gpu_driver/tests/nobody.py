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

"""Drop the privileges of a test process that root has started."""

import os

from oslo_privsep import capabilities

USER = 65534
"""The ID of the user ``nobody``, or of no user where that does not exist."""


def give(directory: str | os.PathLike) -> None:
    """Give a directory and everything in it to :data:`USER`."""
    for place, _, files in os.walk(directory):
        for path in (place, *(os.path.join(place, name) for name in files)):
            os.chown(path, USER, USER)


def become() -> None:
    """Become :data:`USER` permanently.

    The process keeps CAP_DAC_READ_SEARCH, because Python may be installed
    where only root can read. The capability allows no writes.
    """
    os.setgroups([])
    os.setgid(USER)
    capabilities.set_keepcaps(True)
    os.setuid(USER)
    capabilities.set_keepcaps(False)
    kept = [capabilities.CAP_DAC_READ_SEARCH]
    capabilities.drop_all_caps_except(kept, kept, [])
