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

"""Create a GPU's virtual functions with NVIDIA's sriov-manage.

There is no other way: the kernel's control file (``sriov_numvfs``) refuses
writes with NVIDIA's driver, and NVML has no call for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.program.privileged import child

LOG = logging.getLogger(__name__)

_ATTEMPTS = 5
_SECONDS = 120.0
"""Time limit of one attempt. sriov-manage unbinds the GPU and makes up to a
few hundred virtual functions, which takes seconds."""
_PASSING = 'unbindLock'
"""In its output while another unbind is under way, which is temporary."""
_PAUSE = 1.0
"""Seconds between two attempts."""


def manage(address: str, enable: bool, tool: child.Tool,
           sleep: Callable[[float], object] = time.sleep) -> None:
    """Create or remove all virtual functions of a GPU.

    :param address: the GPU's PCI address.
    :param tool: the script's path, or a simulated machine's function for it
        (:attr:`cyborg_gpu_driver.host.platform.Platform.sriov_manage`).
    :param sleep: called between two attempts.
    :raises SriovError: with the output of the script.
    """
    arguments = ((address, enable) if callable(tool)
                 else ('-e' if enable else '-d', address))
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            child.run(_SECONDS, tool, *arguments)
            return
        except FileNotFoundError as error:
            raise exception.SriovError(
                address=address, reason=f'{tool} cannot be run '
                f'({error}); it comes with NVIDIA vGPU software'
            ) from error
        except child.Failed as error:
            if _PASSING not in str(error) or attempt == _ATTEMPTS:
                raise exception.SriovError(
                    address=address,
                    reason=f'sriov-manage failed: {error}') from error
            LOG.info('GPU %(gpu)s: %(said)s; trying again',
                     {'gpu': address, 'said': error})
        sleep(_PAUSE)
