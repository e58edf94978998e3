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

"""``cyborg-gpu doctor``: where the accounts of who has what disagree."""

from __future__ import annotations

import functools

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import node
from cyborg_gpu_driver.cloud import arqs
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement
from cyborg_gpu_driver.cmd import cloud_options
from cyborg_gpu_driver.cmd import machine as cmd_machine
from cyborg_gpu_driver.cmd import table
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.report import drift
from cyborg_gpu_driver.report import earlier
from cyborg_gpu_driver.report import provider_tree

_DIFFERENT = 1
_NOT_COMPARED = 2


class Doctor(table.Lister):
    """Compare journal, hardware, Cyborg and Placement on this host.

    Lists every difference with what to do about it. Exits 1 if there is one,
    and 2 if there is none and a GPU could not be compared. With --repair
    those that are safe to repair are repaired first.
    Accelerator requests are known only where a cloud is named, to an
    administrator of it; Placement where cyborg.conf has [placement].
    """

    brief = ('gpu', 'kind', 'what', 'remedy')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--repair', action='store_true',
            help='repair what is safe to repair')
        cloud_options.add(parser)
        return parser

    def take_action(self, parsed_args):
        self.app.machine.explain()
        there = _Node(
            self.app.machine, parsed_args.host or self.app.machine.hostname,
            parsed_args.os_cloud)
        if parsed_args.repair:
            cmd_machine.check_root(there.platform, 'repair what is on its '
                                   'GPUs')
            _rebuild(there)
        found = there.reconciler.find(refresh=True)
        if parsed_args.repair:
            for difference in found:
                if difference.safe:
                    _repair(there, difference)
            found = there.reconciler.find(refresh=True)
        unread = _unread(self.app.machine.host)
        if not found and not unread:
            cmd_machine.say('No difference.')
        self._code = (_DIFFERENT if found else
                      _NOT_COMPARED if unread else 0)
        return (('kind', 'gpu', 'subject', 'what', 'remedy', 'safe'), [
            (item.kind.value, str(item.gpu), item.subject, item.text,
             item.remedy, item.safe) for item in found])

    def run(self, parsed_args):
        self._code = 0
        return super().run(parsed_args) or self._code


def _unread(host):
    """GPUs of which nothing can be compared; says so."""
    unread = [gpu for gpu in host.gpus if condition.is_failed(gpu)]
    for gpu in unread:
        cmd_machine.say(f'{choice.name(host, gpu)} is not compared: '
                        + ': '.join(filter(None, (
                            condition.state(gpu), '; '.join(gpu.problems)))))
    return unread


class _Node(node.Node):
    """The node of the doctor, which asks the services that it can.

    :param machine: the host of the command.
    :param hostname: name of the compute node.
    :param cloud: name of the cloud, None for that of the environment.
    """

    def __init__(self, machine, hostname, cloud):
        super().__init__(machine.conf, machine.settings, hostname,
                         _open_placement(machine.conf), machine.mdev_problem)
        self._cloud = cloud
        self.act_here()

    def requests(self):
        """Cyborg's accelerator requests; None where no cloud is named.

        :raises CloudError: if the cloud that is named cannot be asked.
        """
        if not (self._cloud or connection.is_named()):
            return None
        return arqs.read_claims(self._named_cloud, self.hostname)

    def usages(self, looked):
        if self.tree is None:
            return None
        self.draining = self.withdrawn()
        found = self._drift.read(looked, {
            address: self.inventories(address) for address in looked})
        if found is None:
            cmd_machine.say('Placement does not answer and is left out.')
        return found

    def earlier(self, host):
        if self.tree is None:
            return ()
        try:
            return earlier.read(self.tree, self.hostname, host)
        except exception.GpuDriverError as error:
            cmd_machine.say("GPUs that servers have through Cyborg's own "
                            f'driver are left out: {error}')
            return ()

    def publish(self, address):
        """Write what can be made now; the agent does so as well."""
        if self.tree is None:
            return
        wanted = self.inventories(address)
        try:
            self.keeper.enforce(wanted, self.keeper.generations(
                [inventory.provider for inventory in wanted]))
        except exception.GpuDriverError as error:
            cmd_machine.say(f'Placement was not written: {error}')

    @functools.cached_property
    def _named_cloud(self):
        return connection.Cloud.named(self._cloud)

    @functools.cached_property
    def _drift(self):
        return drift.Drift(self.tree, self.hostname, history=False)


def _rebuild(there):
    """Make the journal again if it cannot be used."""
    if there.journal.check():
        there.rebuilder.rebuild()
        cmd_machine.say('The journal was made again.')


def _repair(there, difference):
    """Repair one difference and say what became of it."""
    try:
        done = there.repairer.repair(difference)
    except exception.GpuDriverError as error:
        done = f'{difference.subject} is not repaired: {error}'
    cmd_machine.say(f'GPU {difference.gpu}: {done}')


def _open_placement(conf):
    try:
        client = placement.Placement(conf)
    except exception.CloudError as error:
        cmd_machine.say(f'Placement is left out: {error}')
        return None
    return provider_tree.ProviderTree(lambda: client)
