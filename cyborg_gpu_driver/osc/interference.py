# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu interference``: measurements with pairs of servers."""

from __future__ import annotations

import os
import socket
import uuid

from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cloud import interference as servers
from cyborg_gpu_driver.cmd import interference
from cyborg_gpu_driver.interference import guest
from cyborg_gpu_driver.osc import base

_BOOT = 600.0


class MeasureInterference(base.Lister):
    """Measure how much servers on one GPU slow each other down.

    Boots a server for each application alone, then two servers on one GPU for
    each ordered pair. cloud-init runs the commands as root, and the console of
    the servers has the results. The servers are deleted after each step, also
    after Ctrl-C. Writes the same file as "cyborg-gpu interference measure";
    if it is interrupted, the same command continues from there, and deletes
    the servers that a killed one has left. Needs the role admin.
    """

    brief = interference.BRIEF

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--flavor', metavar='FLAVOR', required=True,
            help='name or id of a flavor; its device profile asks for a slice '
                 'or vGPU of a GPU that has room for two')
        parser.add_argument(
            '--image', metavar='IMAGE', required=True,
            help='name or id of an image with cloud-init and the applications')
        parser.add_argument(
            '--network', metavar='NETWORK',
            help='name or id of a network for the servers (default: none)')
        parser.add_argument(
            '--key-name', metavar='KEY',
            help='key pair for the servers (default: none)')
        parser.add_argument(
            '--host', metavar='HOST',
            help='compute node for the servers (default: the one that Nova '
                 'chooses for the first server)')
        parser.add_argument(
            '--boot-timeout', metavar='SECONDS', default=_BOOT,
            type=moments.seconds(1, 86400),
            help='how long a server may take until it runs its user data '
                 '(default: 600)')
        interference.add_options(parser, guest.RUNS_MOST // 2)
        return parser

    def take_action(self, parsed_args):
        found = interference.wanted(parsed_args)
        self.cloud.check_admin()
        made = servers.resolve(
            self.cloud, parsed_args.flavor, parsed_args.image,
            parsed_args.network, parsed_args.key_name)
        self.code = interference.measure(
            found, parsed_args, lambda endings: servers.Guests(
                self.cloud, made, parsed_args.host, _mark(parsed_args.output),
                parsed_args.timeout, parsed_args.boot_timeout, endings.wait,
                base.say))
        return interference.COLUMNS, interference.rows(found)


def _mark(path: str) -> str:
    """Return what identifies the measurement that writes a file."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f'file://{socket.gethostname()}'
                      + os.path.abspath(path)).hex
