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

"""Reset a GPU with nvidia-smi.

Nothing else can make NVIDIA's driver reset a GPU.
"""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.program.privileged import child

_SECONDS = 120.0
"""Time limit of nvidia-smi. A reset takes seconds. If the GPU does not come
back, the driver gives up much earlier than this."""


def reset(address: str, tool: child.Tool) -> bool:
    """Reset a GPU.

    :param address: PCI address of the GPU.
    :param tool: name or path of nvidia-smi, or a simulated machine's function
        for it (:attr:`cyborg_gpu_driver.host.platform.Platform
        .nvidia_smi`).
    :returns: False if there is no nvidia-smi.
    :raises StepFailed: with its output, or if it does not end in time.
    """
    try:
        child.run(_SECONDS, tool, '--gpu-reset', '-i', address)
    except FileNotFoundError:
        return False
    except child.Failed as error:
        raise exception.StepFailed(
            reason=f'nvidia-smi did not reset it: {error}') from error
    return True
