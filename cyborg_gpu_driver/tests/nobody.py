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

"""Without privileges: what a test process that root has started becomes."""

import os

from oslo_privsep import capabilities

USER = 65534
"""``nobody`` where there is such a user, and nobody elsewhere."""


def give(directory: str | os.PathLike) -> None:
    """Give a directory to :data:`USER`, with all that is in it."""
    for place, _, files in os.walk(directory):
        for path in (place, *(os.path.join(place, name) for name in files)):
            os.chown(path, USER, USER)


def become() -> None:
    """Become :data:`USER` for good.

    CAP_DAC_READ_SEARCH is kept, because Python may lie where root alone can
    read; that opens nothing for writing.
    """
    os.setgroups([])
    os.setgid(USER)
    capabilities.set_keepcaps(True)
    os.setuid(USER)
    capabilities.set_keepcaps(False)
    kept = [capabilities.CAP_DAC_READ_SEARCH]
    capabilities.drop_all_caps_except(kept, kept, [])
