# SPDX-License-Identifier: Apache-2.0

"""Run cyborg-tempest-plugin's tests on the minicloud.

With Cyborg's legacy and its new policy defaults, and with each of our kinds
of device for the servers. The cloud is that of the integration tests: the
one that CYBORG_GPU_MINICLOUD names, else one of its own, which is wiped.

Prints how each test ends, and at the end the runs in which something is
wrong. Exit code 1 if there are any: with a failed test, one that skips itself
and is not known to, or something left behind on the cloud.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

from cyborg_gpu_driver.tests.integration import minicloud
from cyborg_gpu_driver.tests.integration.tempest_run import known
from cyborg_gpu_driver.tests.integration.tempest_run import state

_WORKER = 'cyborg_gpu_driver.tests.integration.tempest_run.worker'
_RUNS = (('api', 'slice'),
         *(('scenario', device) for device in state.DEVICES))
"""The folders of tests with the devices of the servers. Only the scenarios
create servers. For the API tests, any device is as good as another."""


def main() -> int:
    """Do all runs; return 1 if a run has a problem, else 0."""
    argparse.ArgumentParser(
        prog='tox -e tempest --', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    cloud = minicloud.shared.get()
    wrong = []
    for policy in known.POLICIES:
        with state.policy(cloud, policy):
            for run in _RUNS:
                title = ', '.join((f'{policy} policies', *run))
                print(f'\n{title}', flush=True)
                if not _run(cloud, policy, *run):
                    wrong.append(title)
    print(*(f'\nPROBLEM: {title}' for title in wrong))
    return int(bool(wrong))


def _run(cloud, policy, folder, device):
    profile = f'tempest-{policy}-{folder}-{device}'
    with (state.device_profile(cloud, profile, device),
          tempfile.TemporaryDirectory() as directory):
        state.write_conf(pathlib.Path(directory), cloud, policy, profile,
                         device)
        done = subprocess.run(
            [sys.executable, '-m', _WORKER, str(cloud.directory), policy,
             folder, device], check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, 'TEMPEST_CONFIG_DIR': directory,
                 'TEMPEST_CONFIG': 'tempest.conf'})
    left = state.left(cloud)
    if left:
        print(f'This is left on the cloud: {left}')
    return not done.returncode and not left


if __name__ == '__main__':
    sys.exit(main())
