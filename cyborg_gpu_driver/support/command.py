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

"""``cyborg-gpu support-bundle``."""

from __future__ import annotations

import datetime
import os
import socket
import sys

from cliff import command

from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.support import bundle
from cyborg_gpu_driver.support import configuration
from cyborg_gpu_driver.support import parts as parts_module
from cyborg_gpu_driver.support import redaction

_NAME = 'cyborg-gpu-support'
_TIMEOUT = 60.0
_NEVER = ('clouds.yaml and credentials of clouds are not read',
          'options that may be secret are left out, and passwords are masked')
_ANONYMOUS = ('UUIDs, serial numbers and names of the host are replaced; '
              '--with-identifiers keeps them')


class SupportBundle(command.Command):
    """Write one archive with what a bug report needs.

    The archive contains versions, the options without secrets, the output of
    check, report show and doctor, the records of the GPUs and the end of the
    agent's log. index.json lists the parts that failed or took too long. The
    command changes nothing, and sends nothing over the network.
    """

    checks_options = False
    """Some bug reports are about wrong options."""

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--output', metavar='FILE',
            help=f'the .tar.gz file to write (default: {_NAME}-TIME.tar.gz '
                 'in this directory)')
        parser.add_argument(
            '--force', action='store_true',
            help='replace FILE if it exists')
        parser.add_argument(
            '--with-identifiers', action='store_true',
            help='keep UUIDs, serial numbers and names of the host')
        parser.add_argument(
            '--timeout', metavar='SECONDS', default=_TIMEOUT,
            type=moments.seconds(1, 3600),
            help='how long each part may take (default: 60)')
        return parser

    def take_action(self, parsed_args):
        now = datetime.datetime.now(datetime.timezone.utc)
        directory = f'{_NAME}-{now:%Y%m%dT%H%M%SZ}'
        path = parsed_args.output or f'{directory}.tar.gz'
        bundle.check_path(path, parsed_args.force)
        machine, stderr = self.app.machine, sys.stderr
        try:
            found = bundle.gather(parts_module.parts(
                machine, self.app.read_options, main.version()),
                parsed_args.timeout)
        finally:
            # A part that hangs may have replaced sys.stderr by its own.
            sys.stderr = stderr
        left_out = [*_NEVER, *(
            [] if parsed_args.with_identifiers else [_ANONYMOUS])]
        found = _redacted(found, machine.conf, parsed_args.with_identifiers)
        bundle.write(path, bundle.archive(found, directory, {
            'kind': 'cyborg-gpu support-bundle', 'version': 1,
            'taken': now.isoformat(timespec='seconds'),
            'anonymised': not parsed_args.with_identifiers,
            'left_out': left_out}), parsed_args.force)
        self._say(path, found, left_out)

    def _say(self, path, found, left_out):
        write = self.app.stdout.write
        write(f'Wrote {path}, which only its owner can read:\n')
        for name, part in found.items():
            if part.content is not None:
                write(f'  {name}\n')
        write('Left out:\n')
        for name, part in found.items():
            if part.problem:
                write(f'  {name}: {part.problem}\n')
        for line in left_out:
            write(f'  {line}\n')
        write('Read it before you send it.\n')


def _redacted(found, conf, with_identifiers):
    """Return the parts without secrets, and without identities unless
    ``with_identifiers`` is true.
    """
    contents = {name: {'content': part.content, 'problem': part.problem}
                for name, part in found.items()}
    redactor = redaction.Redactor(
        configuration.secrets(conf),
        () if with_identifiers else _hosts(conf))
    contents = redactor.of(contents)
    if not with_identifiers:
        # All parts at once, so that equal identities stay equal in all
        # parts.
        contents = redaction.anonymise(contents)
    return {name: bundle.Part(contents[name]['content'],
                              contents[name]['problem'], part.failed)
            for name, part in found.items()}


def _hosts(conf):
    """Return the names of this host that may occur in texts."""
    name = socket.gethostname()
    return {name, name.partition('.')[0], os.uname().nodename, conf.host,
            conf.host.partition('.')[0]} - {'localhost', 'localhost.'}
