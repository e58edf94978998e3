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

"""``cyborg-gpu gpu prepare``: prepares idle GPUs as the agent does."""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import table
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition


class PrepareGpu(table.Lister):
    """Make idle GPUs ready for their policy.

    Sets MIG mode, virtual functions, mixed-size mode and vGPU scheduler, and
    creates fixed vGPUs, in the order that NVIDIA's driver requires. GPUs in
    use are not changed. Exits 1 if a GPU does not match its policy at the end.
    """

    failed = False

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'gpu', metavar='GPU', nargs='*',
            help=f'a GPU, by {choice.WAYS} (default: all)')
        parser.add_argument(
            '--dry-run', action='store_true',
            help='show what remains to be done, and do nothing')
        return parser

    def run(self, parsed_args):
        return super().run(parsed_args) or int(self.failed)

    def take_action(self, parsed_args):
        machine = self.app.machine.for_changes()
        if not parsed_args.dry_run:
            machine.check_root()
        gpus = ([_named(machine, text) for text in parsed_args.gpu]
                or [gpu for gpu in machine.gpus if not machine.ignores(gpu)])
        act = _planned if parsed_args.dry_run else _prepared
        rows = [_unreadable(gpu) or act(machine, gpu) for gpu in gpus]
        self.failed = any(row[2] == _NOT_READY for row in rows)
        return ('address', 'steps', 'result', 'reason'), rows


_NOT_READY = 'not ready'


def _named(machine, text):
    """Return the GPU that the operator named.

    :raises ChangeRefused: if the driver ignores the GPU.
    """
    gpu = machine.gpu(text)
    if machine.ignores(gpu):
        raise exception.ChangeRefused(
            gpu=gpu.address, reason='it is in [gpu] ignored_devices')
    return gpu


def _unreadable(gpu):
    """Return the row of a GPU whose needs NVML cannot tell; else None."""
    if not condition.is_failed(gpu):
        return None
    return _row(gpu, [], [condition.obstacle(gpu)
                          or '; '.join(gpu.problems)], '')


def _planned(machine, gpu):
    readied, made = machine.preparer.plan(gpu), machine.fixed.plan(gpu)
    return _row(gpu, [*readied.done, *made.done],
                [readied.reason, made.reason], 'to be made ready')


def _prepared(machine, gpu):
    released = machine.fixed.release(gpu)
    readied = machine.preparer.prepare(_now(machine, gpu))
    made = machine.fixed.make(_now(machine, gpu))
    return _row(gpu, [*released.done, *readied.done, *made.done],
                [released.reason, readied.reason, made.reason],
                'made ready')


def _now(machine, gpu):
    try:
        return machine.reader.gpu(gpu.address)
    except exception.UnknownGpu:
        return gpu


def _row(gpu, steps, reasons, done):
    reason = '; '.join(filter(None, reasons))
    result = done if steps else 'ready'
    return (str(gpu.address), columns.Names(steps),
            _NOT_READY if reason else result,
            columns.Optional(reason or None))
