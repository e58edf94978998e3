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

from cliff import lister

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import node
from cyborg_gpu_driver.cloud import arqs
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.cmd import cloud_options
from cyborg_gpu_driver.cmd import machine as cmd_machine
from cyborg_gpu_driver.host import choice
from cyborg_gpu_driver.host import condition
from cyborg_gpu_driver.program import binder
from cyborg_gpu_driver.program import reconcile
from cyborg_gpu_driver.report import drift
from cyborg_gpu_driver.report import earlier
from cyborg_gpu_driver.report import provider_tree

_DIFFERENT = 1
_NOT_COMPARED = 2


class Doctor(lister.Lister):
    """Compare journal, hardware, Cyborg and Placement on this host.

    Lists every difference with what to do about it. Exits 1 if there is one,
    and 2 if there is none and a GPU could not be compared. With --repair
    those that are safe to repair are repaired first.
    Accelerator requests are known only where a cloud is named, to an
    administrator of it; Placement where cyborg.conf has [placement].
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--repair', action='store_true',
            help='repair what is safe to repair')
        cloud_options.add(parser)
        return parser

    def take_action(self, parsed_args):
        self.app.machine.explain()
        comparison = _Comparison(
            self.app.machine, parsed_args.host or self.app.machine.hostname,
            parsed_args.os_cloud)
        if parsed_args.repair:
            comparison.check_privileges()
            comparison.rebuild()
        found = comparison.find()
        if parsed_args.repair:
            for difference in found:
                if difference.safe:
                    comparison.repair(difference)
            found = comparison.find()
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


class _Comparison:
    """What a comparison of this host takes.

    :param machine: the host of the command.
    :param hostname: name of the compute node.
    :param cloud: name of the cloud, None for that of the environment.
    """

    def __init__(self, machine, hostname, cloud):
        self._hostname = hostname
        self._cloud = cloud
        self._placement = _open_placement(machine.conf)
        self._node = node.Node(
            machine.conf, machine.settings, hostname,
            self._placement and provider_tree.ProviderTree(
                lambda: self._placement),
            machine.mdev_problem)
        self._node.act_here()
        binds = binder.Binder(
            self._node.live, self._node.hardware, self._node.journal,
            self._node.state_path, self._publish)
        self._reconciler = reconcile.Reconciler(
            self._node.platform, self._node.live, self._node.journal,
            self._node.settings, self._node.state_path, binds.recover,
            self._publish, usages=self._usages, earlier=self._earlier,
            requests=self._requests)

    def find(self):
        return self._reconciler.find(refresh=True)

    def check_privileges(self):
        cmd_machine.check_root(self._node.platform,
                               'repair what is on its GPUs')

    def rebuild(self):
        """Make the journal again if it cannot be used."""
        if self._node.journal.check():
            self._reconciler.rebuild()
            cmd_machine.say('The journal was made again.')

    def repair(self, difference):
        """Repair one and say what became of it."""
        try:
            done = self._reconciler.repair(difference)
        except exception.GpuDriverError as error:
            done = f'{difference.subject} is not repaired: {error}'
        cmd_machine.say(f'GPU {difference.gpu}: {done}')

    def _requests(self):
        """Cyborg's accelerator requests; None where no cloud is named.

        :raises CloudError: if the cloud that is named cannot be asked.
        """
        if not (self._cloud or connection.is_named()):
            return None
        return arqs.read_claims(self._named_cloud, self._hostname)

    @functools.cached_property
    def _named_cloud(self):
        return connection.Cloud.named(self._cloud)

    def _usages(self, looked):
        if self._placement is None:
            return None
        self._withdrawn = self._node.withdrawn()
        found = self._drift.read(looked, {
            address: self._inventories(address) for address in looked})
        if found is None:
            cmd_machine.say('Placement does not answer and is left out.')
        return found

    def _earlier(self, host):
        if self._placement is None:
            return ()
        try:
            return earlier.read(self._node.tree, self._hostname, host)
        except exception.GpuDriverError as error:
            cmd_machine.say("GPUs that servers have through Cyborg's own "
                            f'driver are left out: {error}')
            return ()

    @functools.cached_property
    def _drift(self):
        return drift.Drift(self._node.tree, self._hostname, history=False)

    @functools.cached_property
    def _withdrawn(self):
        return self._node.withdrawn()

    def _inventories(self, address):
        return self._node.inventories(address, self._withdrawn)

    def _publish(self, address):
        """Write what can be made now; the agent does so as well."""
        if self._placement is None:
            return
        wanted = self._inventories(address)
        keeper = self._node.keeper
        try:
            keeper.enforce(wanted, keeper.generations(
                [inventory.provider for inventory in wanted]))
        except exception.GpuDriverError as error:
            cmd_machine.say(f'Placement was not written: {error}')


def _open_placement(conf):
    try:
        return placement.Placement(conf)
    except exception.CloudError as error:
        cmd_machine.say(f'Placement is left out: {error}')
        return None
