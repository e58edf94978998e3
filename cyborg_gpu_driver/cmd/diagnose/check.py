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


"""``cyborg-gpu check``."""

from __future__ import annotations

import argparse
import os

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.check import facts
from cyborg_gpu_driver.check import placement
from cyborg_gpu_driver.check import run
from cyborg_gpu_driver.check import services
from cyborg_gpu_driver.check.rules import cyborg as rules_cyborg
from cyborg_gpu_driver.check.rules import nova as rules_nova
from cyborg_gpu_driver.check.rules import result
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.cmd.config import nova
from cyborg_gpu_driver.cmd.context import machine as machine_module
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import validation
from cyborg_gpu_driver.host import migration as migration_reader
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.fabric import reader as fabric_reader
from cyborg_gpu_driver.nova import conf_file


class CheckHost(output.Lister):
    """Check that this host's GPUs, Cyborg and Nova fit together.

    Changes nothing. The exit code is 0 if no check found a problem, 1 if
    there is a warning or something could not be checked, and 2 if there is a
    failure.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._code = 0

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        add_options(parser)
        parser.add_argument(
            '--offline', action='store_true', help='do not ask Placement')
        migration_options = parser.add_mutually_exclusive_group()
        migration_options.add_argument(
            '--peer', metavar='FILE', action='append', default=[],
            help='check that servers can be live-migrated between this host '
                 'and the one that wrote FILE with --peer-facts; - is '
                 'standard input; may be repeated')
        migration_options.add_argument(
            '--peer-facts', action='store_true',
            help='check nothing, and write what --peer needs to know about '
                 'this host, as JSON')
        return parser

    def take_action(self, parsed_args):
        named = tuple(placement.read_peers(path) for path in parsed_args.peer)
        facts = gather(self.app.machine, parsed_args, parsed_args.offline)
        found = list(run.run(facts.compared(named)))
        self._code = result.exit_code(finding for _, finding in found)
        return (('check', 'subject', 'result', 'details', 'action'),
                [(name, finding.subject, finding.code.name.lower(),
                  finding.details, finding.advice)
                 for name, finding in found])

    def run(self, parsed_args):
        if parsed_args.peer_facts:
            machine = self.app.machine
            self.app.stdout.write(rules_nova.describe(
                gather(machine, parsed_args, offline=True),
                machine.hostname).dump())
            return 0
        return super().run(parsed_args) or self._code


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name configuration files."""
    parser.add_argument(
        '--nova-config-file', metavar='FILE', action='append',
        help="nova-compute's configuration file; may be repeated "
             '(default: those that nova-compute reads by itself)')
    parser.add_argument(
        '--placement-config-file', metavar='FILE', action='append',
        help="Placement's configuration file; may be repeated (default: "
             'those that Placement reads by itself, if the host is not '
             'simulated)')


def gather(host: machine_module.Machine, parsed_args: argparse.Namespace,
           offline: bool = False) -> facts.Facts:
    """Return the facts that the checks examine.

    :param parsed_args: arguments with the options of :func:`add_options`.
    :param offline: do not query Placement.
    """
    conf = host.conf
    nova_files = (parsed_args.nova_config_file
                  or validation.files_of('nova', 'nova-compute'))
    placement_files = parsed_args.placement_config_file
    if placement_files is None and not conf.gpu.simulate:
        placement_files = [
            path for path in validation.files_of('placement', 'placement-api')
            if os.access(path, os.R_OK)]
    found = facts.Facts(
        host.host, host.settings, remembered=nova.remembered(host),
        by_role={gpu.address: host.situation(gpu).by_role
                   for gpu in host.host.gpus},
        fabric=fabric_reader.look(host.platform, host.host),
        migrations=migration_reader.look(host.platform, host.host),
        state_path=gpu_conf.state_path(conf),
        sriov_manage=platform.SRIOV_MANAGE, mdevctl=platform.MDEVCTL,
        **_cyborg(conf), **_nova(nova_files),
        **_placement(placement_files))
    if conf.gpu.simulate:
        return found
    found = found.on(facts.read_machine(
        gpu_conf.state_path(conf), _programs(found.cyborg)))
    if offline or found.cyborg is None:
        return found
    return found.asked(placement.ask(
        lambda: placement.client(list(validation.files(conf))),
        rules_cyborg.names(found), host.host))


def _cyborg(conf):
    if not any(validation.files(conf)):
        return {'cyborg_problem': 'no cyborg.conf was found'}
    try:
        return {'cyborg': services.cyborg(conf)}
    except exception.InvalidValue as error:
        return {'cyborg_problem': str(error)}


def _nova(files):
    if not files:
        return {'nova_problem': 'no nova.conf was found'}
    try:
        return {'nova': conf_file.read(files),
                'nova_services': services.nova(files)}
    except exception.InvalidValue as error:
        return {'nova_problem': str(error)}


def _placement(files):
    if not files:
        return {'placement_conf_problem': 'placement.conf is not on this '
                                          'host, or cannot be read'}
    try:
        return {'placement_conf': services.placement(files)}
    except exception.InvalidValue as error:
        return {'placement_conf_problem': str(error)}


def _programs(cyborg):
    helper = rules_cyborg.helper_programs(cyborg.helper_command if cyborg
                                          else None)
    return (platform.SRIOV_MANAGE, platform.MDEVCTL, *helper)
