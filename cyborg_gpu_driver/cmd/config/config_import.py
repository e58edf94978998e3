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

"""``cyborg-gpu config import``."""

from __future__ import annotations

import os

from cliff import command

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.config import legacy_notes
from cyborg_gpu_driver.cmd.config import legacy_policies
from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.conf import legacy


class ImportConfig(command.Command):
    """Write policies from the options of Cyborg's own driver and of Nova.

    Reads [gpu_devices] and [vgpu_*] of cyborg.conf, [devices] and [mdev_*] of
    nova.conf, and the GPUs of this host. Differences from the former behavior
    are written to standard error.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'files', metavar='FILE', nargs='+',
            help='configuration file of Cyborg or of Nova; later files '
                 'override earlier ones')
        parser.add_argument(
            '--output', metavar='FILE',
            help='write the policies to FILE, which must not exist '
                 '(default: standard output)')
        parser.add_argument(
            '--force', action='store_true',
            help='with --output: overwrite FILE')
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine
        before = legacy.read(parsed_args.files)
        if machine.host.nvml_problem:
            cmd_machine.say(f'NVML: {machine.host.nvml_problem}')
        plan = legacy_policies.plan(before, machine.host)
        notes = legacy_notes.notes(before, plan, machine.host,
                                   machine.hostname)
        text = legacy_policies.render(plan)
        if parsed_args.output is None:
            self.app.stdout.write(text)
        else:
            _write(parsed_args.output, text, parsed_args.force,
                   parsed_args.files)
        for note in notes:
            cmd_machine.say(note)


def _write(path, text, force, sources):
    if os.path.realpath(path) in map(os.path.realpath, sources):
        raise _refusal(path, 'is one of the imported files; name another file')
    try:
        with open(path, 'w' if force else 'x', encoding='utf-8') as stream:
            stream.write(text)
    except FileExistsError:
        raise _refusal(path, 'the file exists; --force overwrites it'
                       ) from None
    except OSError as error:
        raise _refusal(path, error.strerror) from error


def _refusal(path, expected):
    return exception.InvalidValue(what='--output', value=path,
                                  expected=expected)
