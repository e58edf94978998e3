# SPDX-License-Identifier: Apache-2.0

"""The script that runs in a guest, and its report on the console. Pure.

The measurement reaches a guest only by its user data and its console: the
guest needs no network, no key and no program except a shell. The script
reports each run in a line of the console, and repeats all lines until the
server is deleted, because a kernel message may cut a line in two.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import re
import shlex

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import applications as apps
from cyborg_gpu_driver.interference import results

RUNS_MOST = 200
"""Maximum runs of a step. Nova reads the last 100 KiB of a console
(MAX_CONSOLE_BYTES in nova/virt/libvirt/driver.py), and a line has up to 300
bytes."""
USER_DATA_MOST = 65535
"""Bytes in base64 that Nova accepts (its API reference, "user_data")."""
_CONSOLE_MOST = 1 << 20
"""How many of the last characters of a console are read."""
_PROBLEM = 200
"""Maximum characters of a command's last error line."""
_TICKS = 100
"""Ticks of /proc/uptime per second: it has two decimals (proc_uptime(5))."""
_EXIT_CODES = frozenset({124, 137})
"""Exit codes of timeout(1): 124 if the command timed out, 137 if timeout had
to kill it."""
_KILLED = 137
_AGAIN = 10
"""Seconds between two reports of the same lines."""

_SCRIPT = r"""#!/bin/sh
# Runs a command and reports on the console.
exec < /dev/null
HOME=/root
export HOME
cd "$HOME" || cd /
work=$(mktemp -d) || exit 1
say() {{
    printf '\r\n@gpu-interference {token} %s @\r\n' "$*" >> /dev/console
    printf '%s\n' "$*" >> "$work/said"
}}
clock() {{
    read -r up _ < /proc/uptime
    now=${{up%.*}}${{up#*.}}
}}
kills() {{
    sed -n 's/^oom_kill //p' /proc/vmstat
}}
problem() {{
    tail -n 1 "$work/errors" | tr -c ' -~\n' '?' | cut -c 1-{problem}
}}
run() {{
    before=$(kills)
    clock
    start=$now
    {command} > /dev/null 2> "$work/errors"
    code=$?
    clock
    killed=0
    [ "$before" = "$(kills)" ] || killed=1
    result="run $1 $((now - start)) $code $killed"
    [ "$code" = 0 ] || result="$result $(problem)"
}}
number=0
say begin
{body}
say "end $number"
while sleep {again}; do
    while read -r line; do
        printf '\r\n@gpu-interference {token} %s @\r\n' "$line" >> /dev/console
    done < "$work/said"
done
"""
_COUNTED = """while [ "$number" -lt {count} ]; do
    number=$((number + 1))
    run "$number"
    say "$result"
    [ "$code" = 0 ] || break
done"""
_REPEATED = """code=0
while [ "$code" = 0 ]; do
    run 1
done
number=1
say "$result\""""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a command in a guest.

    :ivar seconds: how long it took, to a hundredth of a second.
    :ivar killed: whether the guest's kernel killed a process for lack of
        memory during the run.
    :ivar problem: the last line of its standard error; empty if it succeeded.
    """

    seconds: float
    exit_code: int
    killed: bool
    problem: str


@dataclasses.dataclass(frozen=True)
class Report:
    """What a guest has reported so far.

    :ivar begun: whether its script has started.
    :ivar runs: the reported runs in order, without gaps.
    :ivar ended: whether these are all runs.
    """

    begun: bool = False
    runs: tuple[Run, ...] = ()
    ended: bool = False


def user_data(application: apps.Application, token: str, count: int | None,
              timeout: float) -> str:
    """Return a script for cloud-init, in base64.

    cloud-init runs user data that begins with ``#!`` as root, once, late in
    the first boot ("User-data formats", user-data script).

    :param token: marks the lines of this server; hexadecimal digits.
    :param count: number of runs; None to repeat the run until one fails.
    :param timeout: seconds that each of ``count`` runs may take.
    :raises InvalidValue: if the command is too long for user data.
    """
    command = shlex.join(application.command)
    if count is None:
        body = _REPEATED
    else:
        body = _COUNTED.format(count=count)
        command = f'timeout -k 5 {math.ceil(timeout)} {command}'
    script = _SCRIPT.format(token=token, command=command, body=body,
                            problem=_PROBLEM, again=_AGAIN)
    found = base64.b64encode(
        script.encode(errors='surrogatepass')).decode()
    if len(found) > USER_DATA_MOST:
        raise exception.InvalidValue(
            what=f'command of {application.name}',
            value=f'{command[:60]}...', expected='too long for user data; '
            'put a script into the image')
    return found


def read(console: str, token: str) -> Report:
    """Return what a guest reports; other text on the console is ignored.

    If two lines are about the same run, the first counts.
    """
    found = re.findall(
        rf'^@gpu-interference {re.escape(token)} (?:(begin)|'
        r'run ([0-9]{1,4}) ([0-9]{1,9}) ([0-9]{1,3}) ([01])'
        rf'(?: ([ -~]{{0,{_PROBLEM}}}))?|'
        r'end ([0-9]{1,4})) @\r?$', console[-_CONSOLE_MOST:], re.MULTILINE)
    begun, last = False, None
    runs: dict[int, Run] = {}
    for begin, number, ticks, code, killed, problem, end in found:
        begun = begun or bool(begin)
        if number:
            runs.setdefault(int(number), Run(
                max(1, int(ticks)) / _TICKS, int(code), killed == '1',
                problem.strip()))
        elif end and last is None:
            last = int(end)
    known: list[Run] = []
    while len(known) + 1 in runs:
        known.append(runs[len(known) + 1])
    return Report(begun or bool(known), tuple(known),
                  last is not None and bool(known) and len(known) >= last)


def runs_of(report: Report, application: apps.Application, timeout: float
            ) -> list[results.Runs]:
    """Return the results of the runs that a guest reports.

    :param timeout: seconds that each run might take.
    """
    found = []
    for run in report.runs:
        outcome = _outcome(run, application, timeout)
        problem = (f'took more than {timeout:g} s'
                   if outcome is results.Outcome.TIMED_OUT else
                   f'exit code {run.exit_code}'
                   + (f': {run.problem}' if run.problem else ''))
        found.append(
            results.Runs(seconds=(run.seconds,))
            if outcome is results.Outcome.MEASURED else
            results.Runs(outcome, problem=f'{application.name}: {problem}'))
    return found


def _outcome(run: Run, application: apps.Application, timeout: float
             ) -> results.Outcome:
    if not run.exit_code:
        return results.Outcome.MEASURED
    # Both clock readings were rounded down.
    if (run.exit_code in _EXIT_CODES
            and run.seconds + 2 / _TICKS >= timeout):
        return results.Outcome.TIMED_OUT
    if (run.exit_code in application.out_of_memory_exit_codes
            or run.exit_code == _KILLED and run.killed):
        return results.Outcome.OUT_OF_MEMORY
    return results.Outcome.FAILED
