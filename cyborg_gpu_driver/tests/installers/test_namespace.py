# SPDX-License-Identifier: Apache-2.0


"""The agent and the doctor, with the rights of kolla-ansible's container.

The kernel makes the namespaces of the container; there is no container engine.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import fixtures
from oslotest import base

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.host import open_files
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import host_files

ROOT = pathlib.Path(__file__).resolve().parents[3]

# $WORK/own has the files of the container, which end with it. $VOLUME is on a
# disk of the host.
CONTAINER = """
set -e
mount --make-rprivate /
mount -t tmpfs container "$WORK/own"
mkdir "$WORK/own/cyborg"
%s
exec "$@"
"""
VOLUME = 'mount --bind "$VOLUME" "$WORK/own/cyborg"'
READ_ONLY = 'mount -o remount,bind,ro /sys'
OWN_PROCESSES = ('--pid', '--fork', '--mount-proc')
# The doctor finds the agent by the name of its program.
DOCTOR = """
import sys
from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor.rules import container
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
gpu = model.Gpu(model.PciAddress.parse('0000:16:00.0'), '10de', '20b2', '0302')
print(*(found.message for found in container.limits(facts.Facts(
    model.Host((gpu,)),
    policies.Settings((policy.Policy('s', policy.Mode.MIG),)),
    machine=facts.read_machine(sys.argv[1], ()), state_path=sys.argv[1]))),
    sep='\\n')
"""
# The agent of one container: "bind" gives servers a slice and a whole GPU, and
# "unbind" takes them back. The databases are those of the controller.
AGENT = """
import json, os, sys
from cyborg_gpu_driver.tests.functional import base
from demo_lib import cloud
work, state, action = sys.argv[1:]
paths = [f'{work}/{name}.sqlite' for name in ('cyborg', 'placement')]
class Databases:
    def copy(self, directory):
        return (paths if os.path.exists(paths[0])
                else base.make_templates().copy(directory))
running = cloud.Cloud(work, Databases(), 'compute1', ['cyborg_gpu_driver'], {
    'gpu': {'simulate': 'mixed', 'policies': 'sliced,whole',
            'simulate_state': f'{work}/hardware.json', 'state_path': state,
            'clean_poll_interval': 0, 'health_events': False},
    'gpu_policy:sliced': {'match_model': '*A100*', 'mode': 'mig',
                          'profiles': '1g.10gb'},
    'gpu_policy:whole': {'match_model': '*H100*', 'mode': 'passthrough'}})
for _ in range(2):
    running.report()
before = running.placement.snapshot()
if action == 'bind':
    for name in ('CUSTOM_NVIDIA_1G_10GB', 'PGPU'):
        running.cyborg.create_device_profile(name, {f'resources:{name}': '1'})
    servers = [running.nova.create_server(name).uuid
               for name in ('CUSTOM_NVIDIA_1G_10GB', 'PGPU')]
    running.report()
    found = before
else:
    servers = sorted({arq['instance_uuid'] for arq in running.cyborg.arqs()})
    for server in servers:
        running.nova.delete_server(server)
    for _ in range(2):
        running.report()
    found = running.placement.snapshot()
print(json.dumps([servers, found, running.handles_in_use()]), flush=True)
running.stop()
os._exit(0)
"""


class ContainerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or subprocess.run(
                ['unshare', '--mount', 'true'], check=False,
                capture_output=True).returncode:
            self.skipTest('only root can make the namespaces of a container')
        self.work = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.work / 'own').mkdir()
        # Temporary files may be in memory.
        self.volume = self.useFixture(fixtures.TempDir(sys.prefix)).path

    def run_in(self, *command, namespaces=(), mounts=''):
        done = subprocess.run(
            ['unshare', '--mount', *namespaces, 'sh', '-c', CONTAINER % mounts,
             'container', *command], cwd=ROOT, capture_output=True, text=True,
            check=False, timeout=scope.HANG, env={
                **os.environ, 'WORK': str(self.work), 'VOLUME': self.volume,
                'TMPDIR': str(self.work / 'own' / 'cyborg')})
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def doctor(self, *wrapped, **more):
        """Return what the doctor finds, apart from the processes."""
        agent = self.work / 'cyborg-agent'
        agent.write_text(DOCTOR)
        output = self.run_in(*wrapped, sys.executable, str(agent),
                             str(self.work / 'own' / 'cyborg'), **more)
        found = [line for line in output.splitlines() if line]
        self.own_processes = [line for line in found
                              if 'processes of this container' in line]
        return [line for line in found if line not in self.own_processes]

    def test_role_with_the_patch(self):
        if facts._mount('/proc', self.volume).kind == 'overlay':
            self.skipTest('these tests run in a container themselves')
        self.assertEqual([], self.doctor(mounts=VOLUME))
        self.assertEqual(not open_files.shows_all('/proc'),
                         bool(self.own_processes))

    def test_role_without_the_patch(self):
        (found,) = self.doctor(namespaces=OWN_PROCESSES)
        self.assertIn('is on tmpfs', found)
        self.assertEqual(1, len(self.own_processes))

    def test_container_that_is_not_privileged(self):
        sysfs, capabilities = self.doctor(
            'setpriv', '--bounding-set=-sys_admin,-sys_ptrace',
            mounts=f'{VOLUME}\n{READ_ONLY}')
        self.assertIn('/sys is read-only', sysfs)
        self.assertIn('cannot have CAP_SYS_PTRACE, CAP_SYS_ADMIN:',
                      capabilities)

    def test_servers_outlive_the_container(self):
        """Each run has new files, as a container that is created again."""
        state = self.work / 'own' / 'cyborg' / 'gpu'
        agent = (sys.executable, '-c', AGENT, str(self.work), str(state))
        servers, untouched, used = json.loads(self.run_in(
            *agent, 'bind', mounts=VOLUME))
        self.assertEqual(2, len(used))
        program = (pathlib.Path(sys.executable).with_name('cyborg-gpu'),
                   '--config-file', self.work / 'cyborg.conf')
        # A container without the volume has lost the records.
        owned = [[vgpu['owner'] != 'none' for vgpu in json.loads(self.run_in(
            *program, 'vgpu', 'list', '-f', 'json', mounts=mounts))]
            for mounts in (VOLUME, '')]
        self.assertEqual([[True], [False]], owned)
        self.assertEqual([sorted(servers), untouched, []], json.loads(
            self.run_in(*agent, 'unbind', mounts=VOLUME)))
        records = host_files.audit(pathlib.Path(self.volume, 'gpu'))
        self.assertEqual(['given', 'returned', 'cleaned'], [
            record.what for record in records if record.subject == servers[1]])
