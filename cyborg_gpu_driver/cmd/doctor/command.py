# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu doctor``: the problems of this host, and what to do."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import TypeVar

from cliff import command

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cmd import context
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.cmd.config import nova
from cyborg_gpu_driver.cmd.doctor import facts as facts_module
from cyborg_gpu_driver.cmd.doctor import placement
from cyborg_gpu_driver.cmd.doctor.rules import container
from cyborg_gpu_driver.cmd.doctor.rules import cyborg as rules_cyborg
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.cmd.doctor.rules import gpus as rules_gpus
from cyborg_gpu_driver.cmd.doctor.rules import nova as rules_nova
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import validation
from cyborg_gpu_driver.host import migration as migration_reader
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.fabric import reader as fabric_reader
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health as partition_health
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.report import drift

LOG = logging.getLogger(__name__)

_AGAIN = 'correct the problem and run "cyborg-gpu doctor" again'
_SECONDS, _LONGEST = 60.0, 3600.0
_QUESTIONS = 3
"""The number of queries that the comparison sends to services."""
_MOST_NAMED = 4
"""The most GPUs that a line of the table names."""
_GPU = 'GPU'
_Answer = TypeVar('_Answer')
_Find = Callable[[facts_module.Facts], Iterable[finding.Finding]]

CHECKS: dict[str, tuple[_Find, tuple[str, ...]]] = {
    'gpus': (rules_gpus.offered, ()),
    'kernel-driver': (rules_gpus.driver, ()),
    'kernel-modules': (rules_gpus.modules, ('machine',)),
    'nvml': (rules_gpus.nvml, ()),
    'nvswitches': (rules_gpus.fabric_manager, ()),
    'iommu': (rules_gpus.iommu, ()),
    'mig-mode-and-sr-iov': (rules_gpus.ready, ()),
    'vgpu-framework': (rules_gpus.way, ()),
    'sriov-manage': (rules_gpus.sriov_manage, ('machine',)),
    'mdevctl': (rules_gpus.mdevctl, ('machine',)),
    'cyborg-release': (rules_cyborg.release, ('machine',)),
    'cyborg-drivers': (rules_cyborg.drivers, ('cyborg',)),
    'agent-privileges': (rules_cyborg.privileges, ('machine', 'cyborg')),
    'agent-access': (rules_cyborg.access, ('machine',)),
    'container': (container.limits, ('machine',)),
    'host-name': (rules_cyborg.host_name, ('machine', 'cyborg')),
    'placement': (rules_cyborg.placement, ('machine', 'cyborg')),
    'providers': (rules_cyborg.providers, ()),
    'allocation-candidates': (rules_cyborg.candidates, ('placement_conf',)),
    'placement-claims': (rules_cyborg.claims, ('placement_conf',)),
    'service-token-cyborg': (rules_cyborg.service_roles, ('cyborg',)),
    'nova-release': (rules_nova.release, ('machine',)),
    'service-token-nova': (rules_nova.service_token, ('nova',)),
    'guests-at-host-boot': (rules_nova.guests, ('machine', 'nova')),
    'nova-compute-command': (rules_gpus.start_command, ()),
    'nova-pci-devices': (rules_nova.pci_devices, ('nova',)),
    'nova-quotas': (rules_nova.quotas, ('machine', 'nova')),
    'nova-mdev-types': (rules_nova.mdev_types, ('nova',)),
}
"""The checks of the installation, by code, with the facts that each needs.

Each is a function that takes the facts and yields findings.
"""


def of_checks(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Yield the findings of the checks, and the files that were not read."""
    for problem, what, option in (
            (facts.cyborg_problem, 'cyborg.conf', '--config-file before the '
             'command'),
            (facts.nova_problem, 'nova.conf', '--nova-config-file, as a user '
             'who can read it'),
            (facts.placement_conf_problem, 'placement.conf',
             '--placement-config-file')):
        if problem:
            yield finding.unknown(
                None, problem, f'Give the path of {what} with {option}')
    for code, (find, needs) in CHECKS.items():
        if all(getattr(facts, name) is not None for name in needs):
            for found in find(facts):
                yield found.named(code)


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


def of_health(statuses: Iterable[health.Status]
              ) -> Iterator[finding.Finding]:
    """Yield the GPUs and their parts that are or may be unhealthy."""
    for status in statuses:
        address = str(status.gpu.address)
        if status.verdict.is_unhealthy:
            yield finding.error(
                address, _conditions(status.verdict), _heal(status)
            ).named('unhealthy-gpu')
        elif condition.is_failed(status.gpu):
            yield finding.unknown(
                address, ': '.join(filter(None, (
                    condition.state(status.gpu),
                    '; '.join(status.gpu.problems)))), _AGAIN)
        for part, verdict in status.parts.items():
            code, advice = _PARTS[type(part)]
            yield dataclasses.replace(
                finding.error(address, _conditions(verdict), advice),
                code=code, subject=str(part))


def _heal(status: health.Status) -> str:
    if status.verdict.state is partition_health.State.PERMANENT:
        return 'replace the board'
    return ('reset the GPU while it is idle, or restart the host; then run '
            f'"cyborg-gpu health clear {status.gpu.address}"')


def _conditions(verdict: partition_health.Verdict) -> str:
    since = (f' since {moments.iso(verdict.since)}' if verdict.since else '')
    return f'{verdict.state.value}{since}: ' + '; '.join(verdict.reasons)


def of_differences(found: Iterable[reconcile.Difference]
                   ) -> Iterator[finding.Finding]:
    """Yield the differences between the sources of ownership data."""
    for item in found:
        yield finding.Finding(
            finding.Severity.WARNING if item.may_pass or item.by_report
            else finding.Severity.ERROR, str(item.gpu), item.text,
            item.remedy, item.kind.value, item.subject, item.safe)


def attempt(what: str, seconds: float, look: Callable[[], _Answer]
            ) -> _Answer | finding.Finding:
    """Return the result of ``look``, or a finding that says why it has none.

    :param what: what it examines.
    :param seconds: how long ``look`` may take. After that, it continues in
        its thread, which ends with the process.
    """
    answers: list[_Answer] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            answers.append(look())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if answers:
        return answers[0]
    reason = f'it took longer than {seconds:g} seconds'
    for error in errors:
        reason = str(error)
        if not isinstance(error, exception.GpuDriverError):
            LOG.debug('The doctor could not examine %s', what, exc_info=error)
            reason = f'{type(error).__name__}: {error}'
    return finding.unknown(None, f'{what}: {reason}', _AGAIN)


def findings_of(what: str, seconds: float,
                look: Callable[[], Iterable[finding.Finding]]
                ) -> list[finding.Finding]:
    """Return the findings, or one that says why there are none."""
    found = attempt(what, seconds, lambda: list(look()))
    return [found] if isinstance(found, finding.Finding) else found


def grouped(found: Iterable[finding.Finding]
            ) -> Iterator[tuple[finding.Finding, list[str]]]:
    """Yield each finding once, with the GPUs that have it.

    Findings are equal if they differ only in the address of their GPU. If
    several GPUs have one, its texts say "GPU" instead of the address.
    """
    groups: dict[Any, list[finding.Finding]] = {}
    for item in found:
        groups.setdefault(_general(item), []).append(item)
    for general, items in groups.items():
        yield (items[0] if len(items) == 1 else general,
               [item.gpu for item in items if item.gpu])


def _general(item: finding.Finding) -> finding.Finding:
    if item.gpu is None:
        return item
    return dataclasses.replace(
        item, gpu=_GPU, message=item.message.replace(item.gpu, _GPU),
        action=item.action.replace(item.gpu, _GPU))


class Doctor(output.Lister):
    """Find problems of this host, and say what to do about them.

    Checks the machine, its GPUs and their health, and the configuration of
    Cyborg, Nova and Placement. Compares the records with the GPUs, with
    Placement and with Cyborg. The table has equal findings of several GPUs
    once; --long and other formats have each. With --repair, differences that
    are safe to repair are repaired first; nothing else is changed. Cyborg's
    accelerator requests are compared only if a cloud is named and its user is
    an administrator, and Placement only if cyborg.conf has [placement]. The
    exit code is 0 if there is no problem, 1 if there is one, and 2 if the only
    problem is that something could not be examined.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--timeout', metavar='SECONDS', default=_SECONDS,
            type=moments.seconds(0.1, _LONGEST),
            help='how long each part may take (default: %(default)g)')
        parser.add_argument(
            '--repair', action='store_true',
            help='repair differences that are safe to repair')
        context.add_cloud(parser)
        for name, program in (('nova', 'nova-compute'),
                              ('placement', 'Placement')):
            parser.add_argument(
                f'--{name}-config-file', metavar='FILE', action='append',
                help=f'configuration file of {program}; may be repeated '
                     f'(default: those that {program} reads by itself, if '
                     'they are on this host)')
        return parser

    def take_action(self, parsed_args):
        if parsed_args.repair:
            self._repair(parsed_args)
        found = list(self._findings(parsed_args))
        if not found:
            output.say('No problem was found.')
        self.code = finding.exit_code(found)
        if parsed_args.formatter == 'table' and not (
                parsed_args.long or parsed_args.columns):
            return ('severity', 'gpu', 'message', 'action'), [
                (item.severity.value, output.Names(_named(gpus)),
                 item.message, item.action) for item, gpus in grouped(found)]
        return (('code', 'severity', 'gpu', 'subject', 'message', 'action',
                 'safe'), [
            (item.code, item.severity.value, output.Optional(item.gpu),
             output.Optional(item.subject), item.message, item.action,
             item.safe) for item in found])

    def _findings(self, parsed_args) -> Iterator[finding.Finding]:
        machine = self.app.machine
        seconds = parsed_args.timeout
        host = attempt('the GPUs', seconds, lambda: machine.host)
        if isinstance(host, finding.Finding):
            # Everything else needs the GPUs.
            yield host
            return
        machine.explain()
        yield from findings_of(
            'the installation', seconds,
            lambda: _installation(machine, parsed_args))
        yield from findings_of(
            'the health of the GPUs', seconds,
            lambda: of_health(machine.health.statuses(host)))
        there = _Node(machine, parsed_args)
        found = findings_of(
            'the records', 2 * seconds,
            lambda: of_differences(there.reconciler.find(refresh=True)))
        yield from there.unanswered
        yield from found

    def _repair(self, parsed_args) -> None:
        there = _Node(self.app.machine, parsed_args, strict=True)
        there.check_root('repair differences on its GPUs')
        if there.records.check() and there.rebuilder.rebuild():
            output.say('Lost claims were rebuilt.')
        for difference in there.reconciler.find(refresh=True):
            if not difference.safe:
                continue
            try:
                done = there.reconciler.repair(difference)
            except exception.GpuDriverError as error:
                done = f'{difference.subject} is not repaired: {error}'
            output.say(f'GPU {difference.gpu}: {done}')
        for item in there.unanswered:
            output.say(f'{item.message}: its data is not used.')


def _named(gpus: list[str]) -> list[str]:
    if len(gpus) <= _MOST_NAMED:
        return gpus or ['-']
    most = _MOST_NAMED - 1
    return [*gpus[:most], f'and {len(gpus) - most} more']


class ClearHealth(command.Command):
    """Clear the recorded health problems of a GPU.

    For a GPU that was reset by hand or repaired. A problem that persists makes
    it unhealthy again at the agent's next report.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'gpu', metavar='GPU',
            help=f'the GPU, by {choice.WAYS}; for a GPU that is no longer '
                 'present, give its full PCI address')
        return parser

    def take_action(self, parsed_args):
        gpu_health = self.app.machine.health
        with contextlib.suppress(exception.InvalidValue):
            if gpu_health.replaced(model.PciAddress.parse(parsed_args.gpu)):
                return
        gpu_health.replaced(self.app.machine.gpu(parsed_args.gpu).address)


class _Node(context.Machine):
    """The node of the doctor, which queries the available services.

    :param machine: the host of the command.
    :param strict: whether it is an error if a named cloud does not answer.
        The doctor repairs nothing without that cloud's requests.
    """

    def __init__(self, machine: context.Machine,
                 parsed_args: argparse.Namespace, strict: bool = False):
        super().__init__(machine.conf)
        self._hostname = parsed_args.host or machine.hostname
        self.open_placement()
        self._asked = parsed_args
        self._strict = strict
        self.unanswered: list[finding.Finding] = []
        """Findings for the queries that services did not answer."""
        self.act_here()

    def requests(self):
        """Return Cyborg's accelerator requests.

        None if no cloud is named, or the cloud does not answer.

        :raises CloudError: if the node is strict and the cloud does not
            answer.
        """
        if not context.has_cloud(self._asked):
            return None
        return self._claims() if self._strict else self._ask(
            'Cyborg', self._claims)

    def usages(self, looked):
        tree = self.tree
        if tree is None:
            return None
        self.draining = self.withdrawn()
        found = self._ask('Placement', lambda: drift.Drift(
            tree, self.hostname, with_reserved=True).read(looked, {
            address: self.inventories(address) for address in looked}))
        if found is None and not self.unanswered:
            self.unanswered.append(finding.unknown(
                None, 'Placement does not answer', _AGAIN))
        return found

    def _ask(self, what, look):
        """Return the answer of a service; None if there is none."""
        found = attempt(what, self._asked.timeout / _QUESTIONS, look)
        if not isinstance(found, finding.Finding):
            return found
        self.unanswered.append(found)
        return None

    def _claims(self):
        return cyborg.read_claims(
            connection.Cloud.named(self._asked.os_cloud), self.hostname)


def _installation(machine: context.Machine, parsed_args: argparse.Namespace
                  ) -> Iterator[finding.Finding]:
    facts = _gathered(machine, parsed_args)
    if not machine.conf.gpu.simulate:
        helper = rules_cyborg.helper_programs(
            facts.cyborg.helper_command if facts.cyborg else None)
        facts = dataclasses.replace(facts, machine=facts_module.read_machine(
            facts.state_path,
            (platform.SRIOV_MANAGE, platform.MDEVCTL, *helper)))
        if facts.cyborg:
            facts = dataclasses.replace(facts, placement=placement.ask(
                machine.conf, rules_cyborg.names(facts)))
    yield from of_checks(facts)


def _gathered(machine: context.Machine, parsed_args: argparse.Namespace
              ) -> facts_module.Facts:
    """Return the facts about the GPUs and the configuration files."""
    conf, host = machine.conf, machine.host
    placement_files = parsed_args.placement_config_file or []
    if not placement_files and not conf.gpu.simulate:
        placement_files = [path for path in validation.files_of(
            'placement', 'placement-api') if os.access(path, os.R_OK)]
    return facts_module.Facts(
        host, machine.settings, remembered=nova.remembered(machine),
        by_role={gpu.address: machine.situation(gpu).by_role
                 for gpu in host.gpus},
        fabric=fabric_reader.read(machine.platform, host),
        migrations=migration_reader.read(machine.platform, host),
        providers=len(machine.providers),
        state_path=gpu_conf.state_path(conf),
        **_read('cyborg', list(validation.files(conf)),
                lambda _files: facts_module.cyborg(conf),
                'no cyborg.conf was found'),
        **_read('nova', parsed_args.nova_config_file
                or validation.files_of('nova', 'nova-compute'),
                facts_module.nova, 'no nova.conf was found'),
        **_read('placement_conf', placement_files, facts_module.placement))


def _read(name: str, files: list[str], read: Callable[[list[str]], Any],
          missing: str = '') -> dict[str, Any]:
    """Return the fact that a service's files give, or why it is missing."""
    try:
        return {name: read(files)} if files else {f'{name}_problem': missing}
    except exception.InvalidValue as error:
        return {f'{name}_problem': str(error)}
