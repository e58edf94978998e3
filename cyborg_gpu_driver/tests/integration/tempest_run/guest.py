# SPDX-License-Identifier: Apache-2.0

"""A stand-in for the guest: Nova's fake virt driver starts no guests."""

from __future__ import annotations

from collections.abc import Callable

from cyborg_gpu_driver.tests.integration import minicloud


class NoGuest(Exception):
    """The test ran a command that only a real guest could run."""


class StandIn:
    """The methods of an SSH client that the plug-in's tests call.

    :param cloud: the cloud whose hardware is shown.
    :param requests: returns the accelerator requests of the server, as
        Cyborg shows them.
    """

    def __init__(self, cloud: minicloud.Minicloud,
                 requests: Callable[[], list[dict]]):
        self._cloud = cloud
        self._requests = requests

    def validate_authentication(self) -> None:
        """Do nothing: every login is accepted."""

    def exec_command(self, command: str) -> str:
        """Return what ``lspci -n`` would print for the accelerators.

        A request has a line only if the hardware has its accelerator: the
        vGPU with the UUID of the attach handle, or the GPU at the address.

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
            yield f'{address} 0302: 10de:{gpu.model.device}'
