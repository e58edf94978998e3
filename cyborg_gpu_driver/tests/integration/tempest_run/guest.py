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

"""A stand-in for the guest, which the fake virt driver does not have."""

from __future__ import annotations

from collections.abc import Callable

from cyborg_gpu_driver.tests.integration import minicloud


class NoGuest(Exception):
    """A command that only a guest could run."""


class StandIn:
    """What the plug-in's tests use of an SSH client.

    :param cloud: whose hardware answers.
    :param requests: gives the accelerator requests of the server, as Cyborg
        shows them.
    """

    def __init__(self, cloud: minicloud.Minicloud,
                 requests: Callable[[], list[dict]]):
        self._cloud = cloud
        self._requests = requests

    def validate_authentication(self) -> None:
        """Nobody is to be kept out."""

    def exec_command(self, command: str) -> str:
        """What ``lspci -n`` would show of the server's accelerators.

        A request counts only if the hardware has what it promises: the
        vGPU whose UUID is its handle's, or the GPU at its address.

        :raises NoGuest: for any other command.
        """
        if 'lspci -n' not in command:
            raise NoGuest(command)
        return '\n'.join(line for request in self._requests()
                         for line in self._lines(request))

    def _lines(self, request):
        host = request['hostname']
        if request['attach_handle_type'] == 'PCI':
            address = '{domain}:{bus}:{device}.{function}'.format(
                **request['attach_handle_info'])
        else:
            handle = request['attach_handle_uuid']
            address = next(
                (address for address, gpu
                 in self._cloud.hardware(host).items()
                 if handle in {vgpu.uuid for vgpu in gpu.vgpus}), None)
        gpu = self._cloud.machine(host).host.gpu(address)
        if gpu is not None:
            yield f'{address} 0302: {gpu.model.vendor}:{gpu.model.device}'
