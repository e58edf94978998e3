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

"""Whether NVML can work on a GPU, in words. Pure, from the snapshot alone.

This is the only place that decides it. Commands, layouts and the first boot
use it to show and to refuse a GPU.
"""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import drivers
from cyborg_gpu_driver.host.snapshot import model

OK = 'ok'
LOST = 'lost'
UNREADABLE = 'unreadable'
PARTLY = 'partly unreadable'
UNSEEN = 'not seen by NVML'
NO_ANSWER = 'no answer'
NEEDS_RESET = 'needs a reset'
FUNCTION = 'virtual function'
_FAILURES = {
    # nvml.h: "The GPU has fallen off the bus or has otherwise become
    # inaccessible".
    'GPU_IS_LOST': LOST,
    # nvml.h: "The GPU requires a reset before it can be used again".
    'RESET_REQUIRED': NEEDS_RESET,
    'TIMEOUT': NO_ANSWER,
    exception.NvmlNotAnswering.symbol: NO_ANSWER,
}


def state(gpu: model.Gpu) -> str:
    """Return the state of a GPU for NVML, in one to three words.

    It is one of the constants above, ``bound to DRIVER`` or ``no driver``.
    """
    if not _is_nvidias(gpu):
        return f'bound to {gpu.driver}' if gpu.driver else 'no driver'
    if gpu.physfn is not None:
        return FUNCTION
    if not gpu.visible_to_nvml:
        return _FAILURES.get(gpu.nvml_failure or '',
                             UNREADABLE if gpu.problems else UNSEEN)
    if gpu.problems:
        return UNREADABLE if gpu.mig is None else PARTLY
    return OK


def doubts(gpu: model.Gpu) -> tuple[str, ...]:
    """What could not be read of a GPU and of its virtual functions.

    A function that was not read may have a vGPU. So whoever takes a GPU for
    idle, or a vGPU for gone, asks this.
    """
    return (*gpu.problems, *(
        f'virtual function {function.address}: {function.problem}'
        for function in gpu.vfs if function.problem))


def is_away(gpu: model.Gpu) -> bool:
    """Whether NVML cannot, or must not, read the GPU.

    Another driver or none is bound to it, or it is not a physical GPU.
    """
    return gpu.physfn is not None or not _is_nvidias(gpu)


def is_failed(gpu: model.Gpu) -> bool:
    """Whether NVIDIA's driver has the GPU and not all of it can be read."""
    return not is_away(gpu) and state(gpu) != OK


def obstacle(gpu: model.Gpu) -> str:
    """Return why NVML cannot work on a GPU; empty if it can.

    Only its problems tell a GPU whose MIG state could not be read from a GPU
    without MIG.
    """
    if not _is_nvidias(gpu):
        return (f'it is bound to {gpu.driver}, not to the {drivers.NVIDIA} '
                'driver' if gpu.driver
                else f'the {drivers.NVIDIA} driver is not bound to it')
    if gpu.physfn is not None:
        return f'it is a virtual function of {gpu.physfn}'
    if gpu.visible_to_nvml and (gpu.mig is not None or not gpu.problems):
        return ''
    return ': '.join(filter(None, (state(gpu), '; '.join(gpu.problems))))


def _is_nvidias(gpu: model.Gpu) -> bool:
    return gpu.driver == drivers.NVIDIA or not gpu.in_pci_sysfs
