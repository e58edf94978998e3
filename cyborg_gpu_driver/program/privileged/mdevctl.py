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

"""Remove the definitions of mdevs, which mdevctl starts at each boot.

libvirt defines the mdevs that Nova asks for through mdevctl, and no other
program removes the definitions. A definition that is kept would take a vGPU
from the next boot on.
"""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.program.privileged import child

_SECONDS = 5.0
"""Time limit of mdevctl, which removes one file."""
_UNKNOWN = 'No devices match'
"""The message of ``mdevctl undefine`` for an unknown UUID."""


def undefine(uuid: str, tool: child.Tool) -> None:
    """Remove the definition of an mdev; does nothing if there is none.

    A host without mdevctl has no definitions.

    :param tool: mdevctl's name or path, or a simulated machine's function
        for it (:attr:`cyborg_gpu_driver.host.platform.Platform.mdevctl`).
    :raises MdevctlError: with the output of mdevctl.
    """
    try:
        child.run(_SECONDS, tool, 'undefine', '--uuid', uuid)
    except FileNotFoundError:
        return
    except child.Failed as error:
        if _UNKNOWN not in str(error):
            raise exception.MdevctlError(uuid=uuid,
                                         reason=str(error)) from error
