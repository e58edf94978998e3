# SPDX-License-Identifier: Apache-2.0

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
