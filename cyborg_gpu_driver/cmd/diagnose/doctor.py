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

import dataclasses
import enum
import functools
import logging
import re
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import TypeVar

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.check import run as checks
from cyborg_gpu_driver.check.rules import result
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.cmd.context import cloud_options
from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.cmd.diagnose import check
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health as partition_health
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.report import drift
from cyborg_gpu_driver.report import earlier

# The findings of ``cyborg-gpu doctor``: one type for all problems.

LOG = logging.getLogger(__name__)

NOT_LOOKED_AT = 'not-looked-at'
"""Code of a finding that something could not be examined."""
_NOT_A_WORD = re.compile('[^a-z0-9]+')
_ACT, _UNKNOWN = 1, 2

_Answer = TypeVar('_Answer')


class Section(enum.Enum):
    """A part of the diagnosis, in the order in which it is made."""

    HOST = 'host'
    """The configuration, the host and its services: ``check``."""
    HEALTH = 'health'
    """The health of the GPUs: ``health show``."""
    GPUS = 'gpus'
    """Differences between the records and the GPUs."""
    RECORDS = 'records'
    """Damaged records, and changes that did not finish."""
    CLOUD = 'cloud'
    """Differences between this host and Placement or Cyborg."""


class Severity(enum.Enum):
    """How bad a finding is."""

    ERROR = 'error'
    """Servers fail, or hardware is idle, until the operator acts."""
    WARNING = 'warning'
    """The problem is possible or temporary, or the agent repairs it."""
    UNKNOWN = 'unknown'
    """Something could not be examined."""


_SECTIONS = {
    **dict.fromkeys(reconcile.Kind, Section.GPUS),
    **dict.fromkeys((reconcile.Kind.BAD_RECORD, reconcile.Kind.UNFINISHED,
                     reconcile.Kind.LAYOUT_CHANGE), Section.RECORDS),
    **dict.fromkeys((reconcile.Kind.NO_REQUEST, reconcile.Kind.NOT_RECORDED,
                     reconcile.Kind.ALLOCATED, reconcile.Kind.NOT_ALLOCATED,
                     reconcile.Kind.RESERVED, reconcile.Kind.EARLIER_DRIVER),
                    Section.CLOUD)}
_CODES = {result.Code.FAILURE: Severity.ERROR,
          result.Code.WARNING: Severity.WARNING,
          result.Code.SKIPPED: Severity.UNKNOWN}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One problem, or one thing that could not be examined."""

    section: Section
    code: str
    """The kind of problem, in lower case with hyphens."""
    severity: Severity
    message: str
    action: str
    """What the operator should do."""
    gpu: str | None = None
    """PCI address of the GPU or virtual function; None for the host."""
    subject: str | None = None
    """The affected handle, instance or provider of the GPU, if any."""
    safe: bool = False
    """Whether ``doctor --repair`` repairs it."""


def of_check(found: Iterable[tuple[str, result.Finding]]
             ) -> Iterator[Finding]:
    """Yield the findings of the checks.

    A skipped check is a finding if it has advice how to make the check.
    Several checks that were skipped for one reason are one finding.
    """
    skipped = set()
    for name, item in found:
        if item.code is result.Code.SUCCESS or not item.advice:
            continue
        code = _NOT_A_WORD.sub('-', name.lower())
        if item.code is result.Code.SKIPPED:
            if item in skipped:
                continue
            skipped.add(item)
            code = NOT_LOOKED_AT
        yield Finding(
            Section.HOST, code, _CODES[item.code], item.details, item.advice,
            None if item.subject == result.HOST else item.subject)


_PARTS = {
    model.Placement: (
        'unhealthy-instance',
        'delete the server that has the instance; an instance that is '
        'created in its place is healthy'),
    model.PciAddress: (
        'dead-function',
        "cyborg-agent disables and enables the GPU's virtual functions as "
        'soon as no server uses the GPU, if it prepares GPUs; otherwise do '
        'that yourself, and run cyborg-gpu health clear'),
}
"""By the kind of an unhealthy part of a GPU: the code and the advice."""


def of_health(statuses: Iterable[health.Status]) -> Iterator[Finding]:
    """Yield the GPUs and their parts that are or may be unhealthy."""
    for status in statuses:
        address = str(status.gpu.address)
        if status.verdict.is_unhealthy:
            yield Finding(
                Section.HEALTH, 'unhealthy-gpu', Severity.ERROR,
                _conditions(status.verdict), _heal(status), address)
        elif condition.is_failed(status.gpu):
            yield _unread(Section.HEALTH, status.gpu)
        for part, verdict in status.parts.items():
            code, advice = _PARTS[type(part)]
            yield Finding(Section.HEALTH, code, Severity.ERROR,
                          _conditions(verdict), advice, address, str(part))


def of_differences(found: Iterable[reconcile.Difference]
                   ) -> Iterator[Finding]:
    """Yield the differences between the sources of ownership data."""
    for item in found:
        yield Finding(
            _SECTIONS[item.kind], item.kind.value,
            Severity.WARNING if item.may_pass or item.by_report
            else Severity.ERROR,
            item.text, item.remedy, str(item.gpu), item.subject, item.safe)


def of_unread(host: model.Host) -> Iterator[Finding]:
    """Yield the GPUs that could not be compared with their records."""
    for gpu in host.gpus:
        if condition.is_failed(gpu):
            yield _unread(Section.GPUS, gpu)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 without findings, 1 with an error or a warning, and 2 if all
    findings say that something could not be examined.
    """
    severities = {item.severity for item in findings}
    return (_ACT if severities - {Severity.UNKNOWN}
            else _UNKNOWN if severities else 0)


def unknown(section: Section, reason: str) -> Finding:
    """Return a finding that a section or a part of it was not examined."""
    return Finding(section, NOT_LOOKED_AT, Severity.UNKNOWN, reason,
                   'correct the problem and run "cyborg-gpu doctor --only '
                   f'{section.value}"')


def section_of(name: Section, seconds: float,
               look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of a section, or one that says why it has none.

    :param seconds: as in :func:`attempt`.
    """
    found = attempt(name, seconds, lambda: list(look()))
    return [found] if isinstance(found, Finding) else found


def attempt(section: Section, seconds: float,
            look: Callable[[], _Answer]) -> _Answer | Finding:
    """Return the result of ``look``, or a finding that says why it has none.

    :param seconds: how long ``look`` may take. After that, it continues in
        its thread, which ends with the process.
    """
    answers: list[_Answer] = []
    errors: list[Exception] = []

    def run():
        try:
            answers.append(look())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if answers:
        return answers[0]
    if not errors:
        return unknown(section, f'it took longer than {seconds:g} seconds')
    (error,) = errors
    if isinstance(error, exception.GpuDriverError):
        return unknown(section, str(error))
    LOG.debug('The section %s failed', section.value, exc_info=error)
    return unknown(section, f'{type(error).__name__}: {error}')


def _unread(section, gpu):
    return dataclasses.replace(
        unknown(section, ': '.join(filter(None, (
            condition.state(gpu), '; '.join(gpu.problems))))),
        gpu=str(gpu.address))


def _heal(status):
    if status.verdict.state is partition_health.State.PERMANENT:
        return 'replace the board'
    return ('reset the GPU while it is idle, or restart the host; then run '
            f'"cyborg-gpu health clear {status.gpu.address}"')


def _conditions(verdict):
    return f'{verdict.state.value}: ' + '; '.join(verdict.reasons)


_COMPARED = frozenset({Section.GPUS, Section.RECORDS,
                       Section.CLOUD})
"""The sections whose findings one comparison of all sources makes."""
_SECONDS, _LONGEST = 60.0, 3600.0
_QUESTIONS = 3
"""The number of queries that the comparison sends to services."""


class Doctor(output.Lister):
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
            choices=[section.value for section in Section],
            help='check this section only: '
                 + ', '.join(section.value for section in Section)
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
        self._code = exit_code(found)
        return (('section', 'code', 'severity', 'gpu', 'subject', 'message',
                 'action', 'safe'), [
            (item.section.value, item.code, item.severity.value,
             output.Optional(item.gpu), output.Optional(item.subject),
             item.message, item.action, item.safe) for item in found])

    def run(self, parsed_args):
        return super().run(parsed_args) or self._code

    def _findings(self, parsed_args) -> Iterator[Finding]:
        chosen = [section for section in Section
                  if section.value in (parsed_args.only or
                                       (section.value,))]
        machine = self.app.machine
        host = attempt(chosen[0], parsed_args.timeout,
                       lambda: machine.host)
        if isinstance(host, Finding):
            # Each section needs the GPUs.
            yield host
            return
        machine.explain()
        looks = {
            Section.HOST: lambda: of_check(
                checks.run(check.gather(machine, parsed_args))),
            Section.HEALTH: lambda: of_health(
                machine.health.statuses(host))}
        for section, look in looks.items():
            if section in chosen:
                yield from section_of(section, parsed_args.timeout,
                                      look)
        compared = [section for section in chosen if section in _COMPARED]
        if compared:
            yield from self._compare(parsed_args, compared)

    def _compare(self, parsed_args, chosen):
        """Yield the findings of the sections that one comparison makes."""
        cloud = Section.CLOUD in chosen
        there = _Node.of(self.app.machine, parsed_args, cloud)
        there.asks_cloud = self.asks_cloud
        found = section_of(
            chosen[0], parsed_args.timeout * (1 + cloud),
            lambda: of_differences(
                there.reconciler.find(refresh=True)))
        if Section.GPUS in chosen:
            yield from of_unread(self.app.machine.host)
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
        self.unanswered: list[Finding] = []
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
        found = attempt(Section.CLOUD,
                        self._seconds / _QUESTIONS, look)
        if found is None and without:
            found = unknown(Section.CLOUD, without)
        if not isinstance(found, Finding):
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
    if there.records.check() and there.rebuilder.rebuild():
        cmd_machine.say('Lost claims were rebuilt.')


def _repair(there, difference):
    """Repair one difference and print the result."""
    try:
        done = there.repairer.repair(difference)
    except exception.GpuDriverError as error:
        done = f'{difference.subject} is not repaired: {error}'
    cmd_machine.say(f'GPU {difference.gpu}: {done}')
