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

"""A host whose free capacity a command writes to Placement."""

from __future__ import annotations

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import node
from cyborg_gpu_driver.cloud.api import placement
from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.cmd.output import terminal
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.report import provider_tree


class PublishingNode(node.Node):
    """A node that writes the free capacity of a GPU to Placement.

    :param machine: the host of the command.
    :param hostname: name of the compute node.
    :param asks: whether to use Placement.
    """

    def __init__(self, machine: cmd_machine.Machine, hostname: str,
                 asks: bool = True):
        super().__init__(
            machine.conf, machine.settings, hostname,
            _open_placement(machine.conf) if asks else None,
            machine.mdev_problem)

    def publish(self, address: model.PciAddress) -> None:
        """Write what can be created now, as the agent does too.

        An error is only printed, so that the other GPUs are written.
        """
        if self.tree is None:
            return
        try:
            wanted = self.inventories(address)
            self.keeper.enforce(wanted, self.keeper.generations(
                [inventory.provider for inventory in wanted]))
        except exception.UnknownGpu:
            # A GPU that no longer exists has no offers.
            return
        except exception.GpuDriverError as error:
            terminal.say(f'GPU {address}: Placement was not updated: {error}')


def _open_placement(conf: cfg.ConfigOpts
                    ) -> provider_tree.ProviderTree | None:
    try:
        client = placement.Placement(conf)
    except exception.CloudError as error:
        terminal.say(f'Placement is not used: {error}')
        return None
    return provider_tree.ProviderTree(lambda: client)
