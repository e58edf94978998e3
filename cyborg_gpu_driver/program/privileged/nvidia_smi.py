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

"""nvidia-smi, which alone has NVIDIA's driver reset a GPU."""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.program.privileged import child

_SECONDS = 120.0
"""A reset takes seconds; the driver gives up on a GPU that does not come
back much earlier."""


def reset(address: str, tool: child.Tool) -> bool:
    """Reset a GPU.

    :param address: PCI address of the GPU.
    :param tool: name or path of nvidia-smi, or what a simulated machine has
        in its place (:attr:`cyborg_gpu_driver.host.platform.Platform
        .nvidia_smi`).
    :returns: False where there is no nvidia-smi.
    :raises StepFailed: with what it said, or if it does not end.
    """
    try:
        child.run(_SECONDS, tool, '--gpu-reset', '-i', address)
    except FileNotFoundError:
        return False
    except child.Failed as error:
        raise exception.StepFailed(
            reason=f'nvidia-smi did not reset it: {error}') from error
    return True
