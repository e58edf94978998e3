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

"""What is put into a deployed image, so that its first boot cuts the GPUs.

Values only: whoever has the image mounted writes them.
"""

from __future__ import annotations

import dataclasses
from importlib import resources

from cyborg_gpu_driver.partition.layout import file as layout_file

UNIT = 'cyborg-gpu-firstboot.service'
"""The systemd unit, which is beside this module."""
LAYOUT_PATH = 'etc/cyborg-gpu/layout.yaml'
"""Of the layout, from the root of the image."""
UNIT_PATH = f'etc/systemd/system/{UNIT}'
WANTS_PATH = f'etc/systemd/system/multi-user.target.wants/{UNIT}'
"""What ``systemctl enable`` makes of ``WantedBy=multi-user.target``."""


@dataclasses.dataclass(frozen=True)
class File:
    """A file of root's."""

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
    """All that an image needs beside this package and NVIDIA's driver.

    What is there under these names is to be replaced.

    :param layout_text: a layout file in mig-parted's format, of one entry.
    :raises LayoutError: if it is not.
    """
    layout_file.LayoutFile.parse(layout_text, LAYOUT_PATH).entry()
    return (File(LAYOUT_PATH, layout_text), File(UNIT_PATH, unit_text()),
            Link(WANTS_PATH, f'/{UNIT_PATH}'))


def unit_text() -> str:
    """The unit, as it is installed with this package."""
    return resources.files(__package__).joinpath(UNIT).read_text('utf-8')
