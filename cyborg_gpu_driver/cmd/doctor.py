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
from cyborg_gpu_driver.cloud import arqs
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.cmd import cloud_options
from cyborg_gpu_driver.cmd import machine as cmd_machine
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host import choice
from cyborg_gpu_driver.host import condition
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.program import binder
from cyborg_gpu_driver.program import hardware
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import live
from cyborg_gpu_driver.program import privileged
from cyborg_gpu_driver.program import reconcile
from cyborg_gpu_driver.report import capacity
from cyborg_gpu_driver.report import disabled
from cyborg_gpu_driver.report import drift
from cyborg_gpu_driver.report import earlier
from cyborg_gpu_driver.report import reserved

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
        practice = _Practice(
            self.app.machine, parsed_args.host or self.app.machine.hostname,
            parsed_args.os_cloud)
        if parsed_args.repair:
            practice.check_privileges()
            practice.rebuild()
        found = practice.find()
        if parsed_args.repair:
            for difference in found:
                if difference.safe:
                    practice.repair(difference)
            found = practice.find()
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


class _Practice:
    """All that a comparison of this machine takes."""

    def __init__(self, machine, hostname, cloud):
        self._settings = machine.settings
        self._hostname = hostname
        self._cloud = cloud
        conf = machine.conf
        self._conf = conf
        self._machine = platform.from_conf(conf)
        privileged.run_here(self._machine)
        self._journal = journal.Journal(gpu_conf.state_path(conf))
        self._host = live.LiveHost(reader.HostReader(self._machine),
                                   self._settings, self._journal.entries)
        self._health = health.HealthKeeper(self._machine,
                                           gpu_conf.state_path(conf))
        self._disabled = disabled.remembered(conf.gpu.state_path)
        self._placement = self._open_placement()
        handler = binder.Binder(
            self._host, hardware.Hardware(self._machine), self._journal,
            gpu_conf.state_path(conf), self._publish)
        self._reconciler = reconcile.Reconciler(
            self._machine, self._host, self._journal, self._settings,
            gpu_conf.state_path(conf), handler.recover, self._publish,
            usages=self._usages, earlier=self._earlier,
            requests=self._requests)

    def find(self):
        return self._reconciler.find(refresh=True)

    def check_privileges(self):
        cmd_machine.check_root(self._machine, 'repair what is on its GPUs')

    def rebuild(self):
        """Make the journal again if it cannot be used."""
        if self._journal.check():
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

    def _open_placement(self):
        try:
            return placement.Placement(self._conf)
        except exception.CloudError as error:
            cmd_machine.say(f'Placement is left out: {error}')
            return None

    def _usages(self, looked):
        if self._placement is None:
            return None
        found = self._drift.read(looked)
        if found is None:
            cmd_machine.say('Placement does not answer and is left out.')
        return found

    def _earlier(self, host):
        if self._placement is None:
            return ()
        try:
            return earlier.read(lambda: self._placement, self._hostname, host)
        except exception.GpuDriverError as error:
            cmd_machine.say("GPUs that servers have through Cyborg's own "
                            f'driver are left out: {error}')
            return ()

    @functools.cached_property
    def _drift(self):
        return drift.Drift(lambda: self._placement, self._hostname,
                           history=False, withheld=self._is_sick,
                           disabled=self._disabled)

    @functools.cached_property
    def _keeper(self):
        return reserved.ReservedKeeper(lambda: self._placement)

    def _is_sick(self, address):
        return self._health.sick(address) is not None

    def _publish(self, address):
        """Write what can be made now; the agent does so as well."""
        if self._placement is None:
            return
        wanted = capacity.inventories(
            self._host.offers(self._host.gpu(address)),
            journal.owned(self._journal.entries(address)), self._hostname,
            self._is_sick(address), address in self._disabled)
        try:
            self._keeper.enforce(wanted, self._keeper.generations(
                [inventory.provider for inventory in wanted]))
        except exception.GpuDriverError as error:
            cmd_machine.say(f'Placement was not written: {error}')
