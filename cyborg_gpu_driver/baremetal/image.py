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

"""The root file system of the image that was deployed to this node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ironic_python_agent import disk_utils
from ironic_python_agent import errors
from ironic_python_agent import hardware
from ironic_python_agent import utils
from oslo_concurrency import processutils
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import tree

LOG = logging.getLogger(__name__)

_UNITS = 'etc/systemd/system'
"""A directory that only the root file system has."""
_LVM = 'lvm'
"""One of parted's flags of a partition."""


@contextlib.contextmanager
def mounted() -> Iterator[tree.Tree]:
    """Mount the root file system, and unmount it at the end.

    The agent's own ``inject_files.find_partition_with_path`` cannot be used,
    because it takes partition 2 of /dev/md0 for /dev/md02. The names of
    partitions are those of ``disk_utils.list_partitions``.

    :raises ImageRefused: if no partition of the root device contains it.
    """
    with contextlib.ExitStack() as stack:
        yield tree.Tree(_enter(stack) + '/')


def _enter(stack):
    """Mount the partition with systemd's units; return the mount point."""
    try:
        device = hardware.dispatch_to_managers('get_os_install_device')
        partitions = disk_utils.list_partitions(device)
    except (errors.RESTError, processutils.ProcessExecutionError) as error:
        raise exception.ImageRefused(
            reason=f'its partitions cannot be listed: {error}') from error
    seen = []
    for item in partitions:
        if _LVM in item['flags']:
            seen.append(f'{item["path"]} (LVM)')
            continue
        try:
            with contextlib.ExitStack() as attempt:
                place = attempt.enter_context(utils.mounted(item['path']))
                if os.path.isdir(os.path.join(place, _UNITS)):
                    stack.push(attempt.pop_all())
                    LOG.info('The root file system is on %s', item['path'])
                    return place
        except processutils.ProcessExecutionError as error:
            LOG.warning('Partition %(path)s: %(error)s',
                        {'path': item['path'], 'error': error})
            seen.append(f'{item["path"]} (cannot be mounted)')
        else:
            seen.append(item['path'])
    raise exception.ImageRefused(
        reason=f'no partition has /{_UNITS}: a layout can only be written to '
        'a system with systemd, whose root is a separate file system without '
        'LVM, encryption or subvolumes; checked '
        + (', '.join(seen) or 'none'))
