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

"""``cyborg-gpu gpu drain``."""

from __future__ import annotations

import dataclasses
import time

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cmd.gpu import cordon
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import table
from cyborg_gpu_driver.cmd.output import terminal
from cyborg_gpu_driver.host import domains
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics import owners
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.record import store

_ROUND = 5.0
"""Seconds between two queries."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """A server or process that has a part of a GPU; None means unknown."""

    gpu: model.PciAddress
    what: str
    """The profile, or what was found on the GPU, as text."""
    server: str | None = None
    project: str | None = None
    handle: str | None = None


class DrainGpu(table.Lister):
    """Cordon GPUs, and list the servers that still have a part of them.

    The servers are not touched: shelve, migrate or delete them, or use
    "openstack gpu drain --shelve". The exit code is 0 if all of the GPUs are
    free, and 1 if a server, a process or an allocation still has a part of
    one. The server is known if cyborg-agent may ask Cyborg ([gpu] os_cloud)
    or libvirt runs it; the project is known only from libvirt.
    """

    code = 0

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'gpu', metavar='GPU', nargs='*',
            help=f'a GPU, by {choice.WAYS} (default: all)')
        cordon.add_reason(parser)
        parser.add_argument(
            '--wait', metavar='SECONDS', type=moments.seconds(0), default=0,
            help='how long to wait until the GPUs are free (default: '
            '%(default)s)')
        return parser

    def run(self, parsed_args):
        return super().run(parsed_args) or self.code

    def take_action(self, parsed_args):
        there = self.app.machine
        addresses = list(cordon.cordon_gpus(there, parsed_args))
        there.act_here()
        found = _wait(there, addresses, parsed_args.wait)
        self.code = int(bool(found))
        if not found:
            terminal.say('Free: ' + ', '.join(map(str, addresses)))
        return ('address', 'server', 'project', 'what', 'handle'), [
            (str(holder.gpu), columns.Optional(holder.server),
             columns.Optional(holder.project), holder.what,
             columns.Optional(holder.handle)) for holder in found]


def _wait(there, addresses, seconds, clock=time.monotonic, sleep=time.sleep):
    """Wait until the GPUs are free; return the holders that remain."""
    end = clock() + seconds
    before = None
    said = log_once.LogOnce()
    while True:
        found = _holders(there, addresses, said)
        left = end - clock()
        if not found or left <= 0:
            return found
        if len(found) != before:
            before = len(found)
            terminal.say(f'Waiting up to {left:.0f} s for {before} holder'
                         f'{"s" if before > 1 else ""} to release the GPUs')
        sleep(min(_ROUND, left))


def _holders(there, addresses, said) -> list[Holder]:
    """Return what keeps the GPUs from being free."""
    host = there.reader.snapshot()
    whose = _owners(there, said)
    return [holder for address in addresses
            for holder in _of_gpu(there, host, address, whose)]


def _of_gpu(there, host, address, whose):
    record = store.of(there.state_path).read(address)
    found = []
    for claim in record.claims:
        who = whose.of_claim(claim)
        found.append(Holder(address, claim.profile, who.server or None,
                            who.project or None, claim.handle))
    tenancy = record.tenancy
    if tenancy is not None and tenancy.state is cleaning.State.USED:
        for server in tenancy.tenants:
            who = whose.of_server(server)
            found.append(Holder(address, policy.Mode.PASSTHROUGH.value, server,
                                who.project or None))
    return found or [Holder(address, text)
                     for text in _others(there, host, address)]


def _others(there, host, address):
    """Return what has a part of a GPU without a record of a bind."""
    claimed = there.claimed(address)
    if claimed:
        return [claimed]
    try:
        gpu = host.gpu(address)
    except exception.UnknownGpu:
        return []
    try:
        return blockers.of_running(there.platform, gpu)
    except exception.GpuDriverError as error:
        return [f'not known: {error}']


def _owners(there, said):
    """Return the servers that the agent and libvirt know.

    Either of them may be unavailable.

    :param said: the messages that were already printed.
    """
    try:
        known = state.read(there.state_path)
    except exception.JournalError as error:
        _say_once(said, str(error))
        known = None
    listing = owners.Listing()
    begun = time.time()
    try:
        listing = owners.Listing(begun, domains.DomainReader(
            there.platform.libvirt).read())
    except exception.LibvirtFailed as error:
        _say_once(said,
                  f'The projects of the servers are not known: {error}')
    return owners.Owners(known.owners if known else {}, listing, {})


def _say_once(said, text):
    if said.is_new(text, text):
        terminal.say(text)
