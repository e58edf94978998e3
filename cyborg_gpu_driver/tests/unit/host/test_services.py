# SPDX-License-Identifier: Apache-2.0


"""Which services run, from a temporary procfs."""

from __future__ import annotations

import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.host import services


class ProcCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.proc = self.useFixture(fixtures.TempDir()).path
        os.mkdir(f'{self.proc}/self')

    def run_(self, *words, comm='python3'):
        """Add a process, whose ID is the number of entries before it."""
        directory = f'{self.proc}/{len(os.listdir(self.proc))}'
        os.mkdir(directory)
        with open(f'{directory}/cmdline', 'w', encoding='utf-8') as stream:
            stream.write('\0'.join((*words, '')))
        with open(f'{directory}/comm', 'w', encoding='utf-8') as stream:
            stream.write(f'{comm}\n')
        return directory

    def check(self, *wanted):
        self.assertEqual(set(wanted),
                         services.running(self.proc).nova_commands)


class RunningTest(ProcCase):

    def test_without_our_patches(self):
        for words, comm in (
                (('/usr/bin/python3', '-sE', '/usr/bin/nova-compute',
                  '--config-file', '/etc/nova/nova.conf'), 'python3'),
                (('nova-compute',), 'python3'),
                # Our command that cannot patch.
                (('/usr/bin/python3', '/usr/bin/cyborg-gpu-nova-compute'),
                 'nova-compute')):
            self.run_(*words, comm=comm)
            self.check('nova-compute')
        self.assertTrue(services.running(self.proc).nova_unpatched)

    def test_with_our_patches(self):
        for words in (('/opt/v/bin/python3.12',
                       '/opt/v/bin/cyborg-gpu-nova-compute'),
                      # A link in the place of nova-compute.
                      ('/usr/bin/python3', '/usr/bin/nova-compute')):
            self.run_(*words, comm=services.PATCHED)
            self.check('cyborg-gpu-nova-compute')
        self.assertFalse(services.running(self.proc).nova_unpatched)

    def test_one_for_ironic_beside_it(self):
        self.run_('/usr/bin/python3', '/usr/bin/nova-compute')
        self.run_('nova-compute', comm=services.PATCHED)
        self.assertFalse(services.running(self.proc).nova_unpatched)

    def test_others_that_speak_of_it(self):
        self.run_('vim', '/usr/bin/nova-compute')
        self.run_('/usr/bin/python3', 'x.py', 'nova-compute')
        self.run_('/usr/bin/python3')
        self.run_()
        self.check()

    def test_the_api(self):
        self.run_('/usr/bin/python3', '/usr/bin/cyborg-api')
        self.assertEqual({'cyborg-api'},
                         services.running(self.proc).commands)

    def test_process_that_ends_meanwhile(self):
        os.mkdir(f'{self.proc}/77')
        self.check()

    def test_without_procfs(self):
        self.assertIsNone(services.running(f'{self.proc}/none'))


class AgentTest(ProcCase):

    def agent(self, status):
        directory = self.run_('/usr/bin/python3', '/usr/bin/cyborg-agent')
        with open(f'{directory}/status', 'w', encoding='utf-8') as stream:
            stream.write(status)
        return services.running(self.proc).agent

    def test_user(self):
        self.assertEqual(
            services.User(64060, frozenset((64061, 44, 109))),
            self.agent('Name:\tcyborg-agent\nUid:\t1\t64060\t0\t2\n'
                       'Gid:\t1\t64061\t0\t2\nGroups:\t44 109 \n'))
        self.check()

    def test_first_process_counts(self):
        self.agent('Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t\n')
        found = self.agent(
            'Uid:\t7\t7\t7\t7\nGid:\t7\t7\t7\t7\nGroups:\t\n')
        self.assertEqual(0, found.uid)

    def test_agent_that_ends_meanwhile(self):
        for status in ('', 'Uid:\t0\n', 'Uid:\tx\tx\nGid:\t0\t0\n'):
            self.assertIsNone(self.agent(status))

    def test_no_agent(self):
        self.run_('/usr/bin/python3', '/usr/bin/cyborg-conductor')
        self.assertIsNone(services.running(self.proc).agent)
