# SPDX-License-Identifier: Apache-2.0

"""Run cyborg-tempest-plugin's tests on the minicloud.

With Cyborg's legacy and its new policy defaults, and with each of our kinds
of device for the servers. The cloud is that of the integration tests: the
one that CYBORG_GPU_MINICLOUD names, else one of its own, which is wiped.

Prints how each test ends, then what was passed and skipped and why, and what
is wrong. Exit code 1 if anything is: a failed test, one that neither passed
nor is known not to, or something left behind on the cloud.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from cyborg_gpu_driver.tests.integration import minicloud
from cyborg_gpu_driver.tests.integration.tempest_run import conf
from cyborg_gpu_driver.tests.integration.tempest_run import known
from cyborg_gpu_driver.tests.integration.tempest_run import plan
from cyborg_gpu_driver.tests.integration.tempest_run import state
from cyborg_gpu_driver.tests.integration.tempest_run import verdict

_WORKER = 'cyborg_gpu_driver.tests.integration.tempest_run.worker'


def main() -> int:
    """Do all runs; return 1 if a run has a problem, else 0."""
    argparse.ArgumentParser(
        prog='tox -e tempest --', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    cloud = minicloud.shared.get()
    verdicts = {}
    for policy, enforced in plan.POLICIES.items():
        with state.policy(cloud, enforced):
            for run in plan.runs():
                if run.policy == policy:
                    verdicts[run] = _run(cloud, run)
    _report(verdicts)
    return int(any(found.problems for found in verdicts.values()))


def _run(cloud, run):
    print(f'\n{_title(run)}', flush=True)
    with (state.device_profile(cloud, run),
          tempfile.TemporaryDirectory() as directory):
        found = _work(cloud, run, pathlib.Path(directory))
    left = state.left(cloud)
    if left:
        found.problems['(afterwards)'] = f'is left on the cloud: {left}'
    return found


def _work(cloud, run, directory):
    result = directory / 'result.json'
    conf.write(directory / 'tempest.conf', cloud, run)
    done = subprocess.run(
        [sys.executable, '-m', _WORKER, str(cloud.directory), run.folder,
         run.device, str(result)], check=False, text=True,
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, 'TEMPEST_CONFIG_DIR': str(directory),
             'TEMPEST_CONFIG': 'tempest.conf'})
    if done.returncode:
        return verdict.Verdict((), {}, {
            '(run)': f'ended with {done.returncode}:\n{done.stderr}'})
    document = json.loads(result.read_text(encoding='utf-8'))
    return verdict.judge(
        document['there'],
        {name: verdict.Outcome(**outcome)
         for name, outcome in document['outcomes'].items()},
        known.under(run.policy, run.folder))


def _report(verdicts):
    skipped = collections.defaultdict(list)
    for run, found in verdicts.items():
        for test, reason in found.skipped.items():
            skipped[test, reason].append(_title(run))
    print('\nSkipped:')
    for (test, reason), titles in sorted(skipped.items()):
        print(f'  {test}\n    {reason} ({"; ".join(titles)})')
    for run, found in verdicts.items():
        for test, problem in found.problems.items():
            print(f'\nPROBLEM ({_title(run)}): {test}\n{problem}')
    print('\npolicy  tests     device  passed  skipped  problems')
    for run, found in verdicts.items():
        print(f'{run.policy:6}  {run.folder:8}  {run.device:6}  '
              f'{len(found.passed):6}  {len(found.skipped):7}  '
              f'{len(found.problems):8}')


def _title(run):
    return f'{run.policy} policies, {run.folder}, {run.device}'


if __name__ == '__main__':
    sys.exit(main())
