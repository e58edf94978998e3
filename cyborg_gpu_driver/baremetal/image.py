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
from collections.abc import Iterator

from ironic_python_agent import errors
from ironic_python_agent import inject_files

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import tree

_UNITS = 'etc/systemd/system'
"""What no other partition has."""


@contextlib.contextmanager
def mounted() -> Iterator[tree.Tree]:
    """Mount it, found as ironic-python-agent finds where to inject files.

    :raises ImageRefused: if no partition of the root device is it.
    """
    with contextlib.ExitStack() as stack:
        try:
            units = stack.enter_context(
                inject_files.find_partition_with_path(_UNITS))
        except errors.DeviceNotFound as error:
            raise exception.ImageRefused(
                reason=f'no partition has /{_UNITS}: a layout can be put '
                'only into a system with systemd, whose root is a file '
                'system of its own, not below LVM, encryption or a '
                f'subvolume ({error.details})') from error
        yield tree.Tree(units[:-len(_UNITS)])
