# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu layout apply|checkpoint|restore``: the changing commands."""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.cmd.layout import read as layout
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.program.ready import apply

_SKIPPED = 'skipped'
"""Status of a board without MIG if a layout asks all GPUs for MIG mode."""


class ApplyLayout(layout.LayoutCommand):
    """Apply a layout, and keep existing instances that are part of it.

    Each GPU succeeds or fails on its own. A change that fails is rolled back.
    Exits 1 if a GPU has failed. The layout is restored after a reboot.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        layout.add_entry(parser)
        parser.add_argument(
            '-s', '--skip-reset', action='store_true',
            help='do not reset GPUs: a change of the MIG mode that needs a '
                 'reset stays pending')
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine.for_changes(links=False)
        found = layout.wanted_of(machine, parsed_args)
        machine.check_root()
        outcomes = machine.applier.apply_all(
            [(gpu, wanted) for _, gpu, wanted in found],
            apply.Options(mode_only=parsed_args.mode_only,
                          may_reset=not parsed_args.skip_reset))
        rows = [{'index': index, **_row(outcome)} for (index, _, _), outcome
                in zip(found, outcomes, strict=True)]
        for row, (_, _, wanted) in zip(rows, found, strict=True):
            if wanted.without_mig:
                row['status'] = _SKIPPED
        _write(self, parsed_args.output_format, rows)
        unfinished = {apply.Status.FAILED}
        if not parsed_args.mode_only:
            unfinished.add(apply.Status.PENDING)
        return int(any(outcome.status in unfinished
                       for outcome in outcomes))


class CheckpointLayout(layout.LayoutCommand):
    """Save the current layout of the GPUs, for layout restore.

    Instances of bound handles and of fixed vGPUs are left out, because they
    are restored together with those.
    """

    def take_action(self, parsed_args):
        machine = self.app.machine.for_changes(links=False)
        gpus = [gpu for gpu in machine.gpus
                if not machine.ignores(gpu) and not condition.is_away(gpu)]
        saved = [machine.applier.saved(machine.current(gpu))
                 for gpu in machine.reachable(gpus)]
        apply.remember(machine.state_path, saved)
        rows = [{'address': str(item.gpu), 'status': 'remembered',
                 'mig_enabled': item.layout.enabled,
                 'instances': len(item.layout.instances), 'error': None}
                for item in saved]
        _write(self, parsed_args.output_format, rows)


class RestoreLayout(layout.LayoutCommand):
    """Restore GPUs after a reboot or a crash.

    Rolls back interrupted changes. Then creates what is missing: what the
    GPU's policy needs, everything that is bound to handles, the instances of
    the checkpoint and the fixed vGPUs of the policy. Destroys nothing else.
    Exits 1 if a GPU could not be restored.
    """

    def take_action(self, parsed_args):
        machine = self.app.machine.for_changes(links=False)
        machine.check_root()
        saved = {item.gpu: item
                 for item in apply.remembered(machine.state_path)}
        # Skip a GPU that is bound to another driver and has no saved layout,
        # because it is for passthrough.
        gpus = [gpu for gpu in machine.gpus if not machine.ignores(gpu)
                and (gpu.address in saved or not condition.is_away(gpu))]
        absent = sorted(set(saved) - {gpu.address for gpu in machine.gpus})
        rows = apply.modes_first(gpus, lambda gpu, modes_set: _restored(
            machine, gpu, saved, modes_set))
        rows.extend(_row(apply.Outcome(
            address, apply.Status.FAILED,
            exception.UnknownGpu(address=address))) for address in absent)
        _write(self, parsed_args.output_format, rows)
        return int(any(row['error'] for row in rows))


def _restored(machine, gpu, saved, modes_set):
    done: list[str] = []
    try:
        machine.reachable((gpu,))
        machine.preparer.restore(gpu, saved.get(gpu.address), done, modes_set)
        outcome = apply.Outcome(
            gpu.address, apply.Status.CHANGED if done
            else apply.Status.UNCHANGED)
    except exception.GpuDriverError as error:
        outcome = apply.Outcome(gpu.address, apply.Status.FAILED, error)
    return {**_row(outcome), 'done': done}


def _row(outcome):
    return {'address': str(outcome.gpu), 'status': outcome.status.value,
            'error': str(outcome.error) if outcome.error else None}


def _write(asked, output_format, rows):
    for row in rows:
        for words in row.get('done', ()):
            output.say(f'{row["address"]}: {words}')
        if row['error']:
            output.say(row['error'])
    if output_format != 'text':
        asked.write_value(rows, output_format)
        return
    for row in rows:
        asked.write(f'{row["address"]}  {row["status"]}')
