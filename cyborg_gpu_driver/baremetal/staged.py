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

"""The files in a deployed image that partition the GPUs at its first boot.

Values only: the caller that has the image mounted writes them.
"""

from __future__ import annotations

import dataclasses
from importlib import resources

from cyborg_gpu_driver.partition.layout import file as layout_file

UNIT = 'cyborg-gpu-firstboot.service'
"""The systemd unit, a file next to this module."""
LAYOUT_PATH = 'etc/cyborg-gpu/layout.yaml'
"""Path of the layout, from the root of the image."""
UNIT_PATH = f'etc/systemd/system/{UNIT}'
WANTS_PATH = f'etc/systemd/system/multi-user.target.wants/{UNIT}'
"""The link that ``systemctl enable`` creates for
``WantedBy=multi-user.target``."""


@dataclasses.dataclass(frozen=True)
class File:
    """A file that root owns."""

    path: str
    """From the root of the image, without a leading slash."""
    text: str
    mode: int = 0o644


@dataclasses.dataclass(frozen=True)
class Link:
    """A symbolic link."""

    path: str
    """From the root of the image, without a leading slash."""
    target: str
    """As the booted system sees it."""


def files(layout_text: str) -> tuple[File | Link, ...]:
    """Return all that an image needs besides this package and the driver.

    Existing files with these names are to be replaced.

    :param layout_text: a layout file in mig-parted's format, of one entry.
    :raises LayoutError: if the text is not such a file.
    """
    layout_file.LayoutFile.parse(layout_text, LAYOUT_PATH).entry()
    return (File(LAYOUT_PATH, layout_text), File(UNIT_PATH, unit_text()),
            Link(WANTS_PATH, f'/{UNIT_PATH}'))


def unit_text() -> str:
    """Return the unit, as it is installed with this package."""
    return resources.files(__package__).joinpath(UNIT).read_text('utf-8')
