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

"""``cyborg-gpu doctor``: the problems of this host, and what to do."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.check import run as checks
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cmd.context import cloud_options
from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.cmd.diagnose import check
from cyborg_gpu_driver.cmd.diagnose import diagnosis
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import table
from cyborg_gpu_driver.report import drift
from cyborg_gpu_driver.report import earlier

_COMPARED = frozenset({diagnosis.Section.GPUS, diagnosis.Section.RECORDS,
                       diagnosis.Section.CLOUD})
"""The sections whose findings one comparison of all sources makes."""
_SECONDS, _LONGEST = 60.0, 3600.0
_QUESTIONS = 3
"""The number of queries that the comparison sends to services."""


class Doctor(table.Lister):
    """Find problems of this host, and say what to do about them.

    Checks the configuration and the host, as "check" does, and the health of
    the GPUs, as "health show" does. Compares the records with the GPUs, with
    Placement and with Cyborg. The exit code is 0 if there is no problem, 1 if
    there is one, and 2 if the only problem is that something could not be
    checked. With --repair, differences that are safe to repair are repaired
    first; nothing else is changed. Cyborg's accelerator requests are compared
    only if a cloud is named and its user is an administrator, and Placement
    only if cyborg.conf has [placement].
    """

    brief = ('severity', 'gpu', 'message', 'action')
    asks_cloud = True
    """Whether the command may query the named cloud, also by clouds.yaml."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._code = 0

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--only', metavar='SECTION', action='append',
            choices=[section.value for section in diagnosis.Section],
            help='check this section only: '
                 + ', '.join(section.value for section in diagnosis.Section)
                 + '; may be repeated')
        parser.add_argument(
            '--timeout', metavar='SECONDS', default=_SECONDS,
            type=moments.seconds(0.1, _LONGEST),
            help='how long a section may take (default: %(default)g)')
        parser.add_argument(
            '--repair', action='store_true',
            help='repair differences that are safe to repair')
        cloud_options.add(parser)
        check.add_options(parser)
        return parser

    def take_action(self, parsed_args):
        if parsed_args.repair:
            self._repair(parsed_args)
        found = list(self._findings(parsed_args))
        if not found:
            cmd_machine.say('No problem was found.')
        self._code = diagnosis.exit_code(found)
        return (('section', 'code', 'severity', 'gpu', 'subject', 'message',
                 'action', 'safe'), [
            (item.section.value, item.code, item.severity.value,
             columns.Optional(item.gpu), columns.Optional(item.subject),
             item.message, item.action, item.safe) for item in found])

    def run(self, parsed_args):
        return super().run(parsed_args) or self._code

    def _findings(self, parsed_args) -> Iterator[diagnosis.Finding]:
        chosen = [section for section in diagnosis.Section
                  if section.value in (parsed_args.only or
                                       (section.value,))]
        machine = self.app.machine
        host = diagnosis.attempt(chosen[0], parsed_args.timeout,
                                 lambda: machine.host)
        if isinstance(host, diagnosis.Finding):
            # Each section needs the GPUs.
            yield host
            return
        machine.explain()
        looks = {
            diagnosis.Section.HOST: lambda: diagnosis.of_check(
                checks.run(check.gather(machine, parsed_args))),
            diagnosis.Section.HEALTH: lambda: diagnosis.of_health(
                machine.health.statuses(host))}
        for section, look in looks.items():
            if section in chosen:
                yield from diagnosis.section(section, parsed_args.timeout,
                                             look)
        compared = [section for section in chosen if section in _COMPARED]
        if compared:
            yield from self._compare(parsed_args, compared)

    def _compare(self, parsed_args, chosen):
        """Yield the findings of the sections that one comparison makes."""
        cloud = diagnosis.Section.CLOUD in chosen
        there = _Node.of(self.app.machine, parsed_args, cloud)
        there.asks_cloud = self.asks_cloud
        found = diagnosis.section(
            chosen[0], parsed_args.timeout * (1 + cloud),
            lambda: diagnosis.of_differences(
                there.reconciler.find(refresh=True)))
        if diagnosis.Section.GPUS in chosen:
            yield from diagnosis.of_unread(self.app.machine.host)
        yield from there.unanswered
        yield from (item for item in found if item.section in chosen)

    def _repair(self, parsed_args):
        there = _Node.of(self.app.machine, parsed_args, True, strict=True)
        there.check_root('repair differences on its GPUs')
        _rebuild(there)
        for difference in there.reconciler.find(refresh=True):
            if difference.safe:
                _repair(there, difference)
        for item in there.unanswered:
            cmd_machine.say(f'{item.message}: its data is not used.')



class _Node(cmd_machine.Machine):
    """The node of the doctor, which queries the available services.

    :param machine: the host of the command.
    :param hostname: name of the compute node.
    :param cloud: name of the cloud; None for the cloud of the environment.
    :param seconds: how long all queries to services may take; 0 to send no
        queries.
    :param strict: whether it is an error if a named cloud does not answer.
        The doctor repairs nothing without that cloud's requests.
    """

    asks_cloud = True

    def __init__(self, machine, hostname, cloud, seconds, strict):
        super().__init__(machine.conf)
        self._hostname = hostname
        if seconds:
            self.open_placement()
        self._cloud = cloud
        self._seconds = seconds
        self._strict = strict
        self.unanswered: list[diagnosis.Finding] = []
        """Findings for the queries that services did not answer."""
        self.act_here()

    @classmethod
    def of(cls, machine, parsed_args, asks, strict=False):
        """Return the node for a command line.

        :param asks: whether to query services.
        """
        return cls(machine, parsed_args.host or machine.hostname,
                   parsed_args.os_cloud, parsed_args.timeout * asks, strict)

    def requests(self):
        """Return Cyborg's accelerator requests.

        None if no cloud is named, or the cloud does not answer.

        :raises CloudError: if the node is strict and the cloud does not
            answer.
        """
        if not (self.asks_cloud and self._seconds
                and (self._cloud or connection.is_named())):
            return None
        if self._strict:
            return self._claims()
        return self._ask(self._claims)

    def usages(self, looked):
        if self.tree is None:
            return None
        self.draining = self.withdrawn()
        return self._ask(lambda: self._drift.read(looked, {
            address: self.inventories(address) for address in looked}),
            'Placement does not answer')

    def earlier(self, host):
        if self.tree is None:
            return ()
        return self._ask(lambda: earlier.read(self.tree, self.hostname, host)
                         ) or ()

    def _ask(self, look, without=None):
        """Return the answer of a service; None if there is none.

        :param without: the message if ``look`` returns None.
        """
        found = diagnosis.attempt(diagnosis.Section.CLOUD,
                                  self._seconds / _QUESTIONS, look)
        if found is None and without:
            found = diagnosis.unknown(diagnosis.Section.CLOUD, without)
        if not isinstance(found, diagnosis.Finding):
            return found
        self.unanswered.append(found)
        return None

    def _claims(self):
        return cyborg.read_claims(self._named_cloud, self.hostname)

    @functools.cached_property
    def _named_cloud(self):
        return connection.Cloud.named(self._cloud)

    @functools.cached_property
    def _drift(self):
        return drift.Drift(self.tree, self.hostname, history=False)


def _rebuild(there):
    """Rebuild the journal if it cannot be used."""
    if there.journal.check() and there.rebuilder.rebuild():
        cmd_machine.say('The journal of binds was rebuilt.')


def _repair(there, difference):
    """Repair one difference and print the result."""
    try:
        done = there.repairer.repair(difference)
    except exception.GpuDriverError as error:
        done = f'{difference.subject} is not repaired: {error}'
    cmd_machine.say(f'GPU {difference.gpu}: {done}')
