# SPDX-License-Identifier: Apache-2.0

"""What unstack.sh and clean.sh leave of the DevStack plugin's changes."""

from cyborg_gpu_driver.tests.unit.devstack import case


class UnstackTest(case.PluginTest):

    def test_leaves_what_cyborg_wrote(self):
        self.stack('post-config',
                   settings={**case.SIMULATED, 'ONLY_CYBORG': 'True'})
        before = self.configuration()
        self.stack('post-config', settings={
            **case.SIMULATED, 'CYBORG_GPU_POLICIES': 'all',
            'CYBORG_GPU_POLICY_all': 'mode=passthrough'})
        self.assertNotEqual(before, self.configuration())
        more = '\n[site]\noption = value\n'
        self.conf.write_text(self.configuration() + more, encoding='utf-8')
        self.unstack('unstack', settings=case.SIMULATED)
        self.assertEqual(before + more, self.configuration())
        # The next stack.sh starts with a new database and a new host.
        self.assertEqual([], list(self.state.iterdir()))

    def test_leaves_what_the_site_set(self):
        self.stack('post-config', settings=case.SIMULATED)
        text = self.configuration().replace('devstack1', 'compute7')
        self.conf.write_text(text.replace('= service', '= nova_service'),
                             encoding='utf-8')
        self.unstack('unstack', settings=case.SIMULATED)
        for line in ('host = compute7', 'resource_provider_name = compute7',
                     'service_token_roles = nova_service',
                     'enabled_drivers = fake_driver'):
            self.assertIn(f'{line}\n', self.configuration())

    def test_takes_the_unit_away(self):
        self.stack('post-config', settings=case.REAL)
        self.assertTrue(self.unit.exists())
        record = self.unstack('unstack', settings=case.REAL)
        self.assertEqual(
            [('sudo', 'systemctl', 'disable', 'cyborg-gpu-restore.service'),
             ('sudo', 'rm', '-f', 'systemd/cyborg-gpu-restore.service'),
             ('sudo', 'systemctl', 'daemon-reload')],
            [call for call in record if call[0] == 'sudo'][:3])
        self.assertFalse(self.unit.exists())
        self.assertNotIn('cyborg_gpu', self.configuration())

    def test_twice_and_without_stack(self):
        nothing = [('phase', 'unstack', ''),
                   ('sudo', 'rm', '-rf', 'cyborg/gpu/simulated')]
        self.assertEqual(nothing, self.unstack('unstack',
                                               settings=case.SIMULATED))
        self.stack('post-config', settings=case.SIMULATED)
        self.unstack('unstack', settings=case.SIMULATED)
        self.assertEqual(nothing, self.unstack('unstack',
                                               settings=case.SIMULATED))


class CleanTest(case.PluginTest):

    def test_takes_the_rest_away(self):
        self.stack('post-config', settings=case.SIMULATED)
        record = self.unstack('unstack', 'clean', settings=case.SIMULATED)
        self.assertEqual([('phase', 'clean', ''),
                          ('sudo', 'rm', '-rf', 'cyborg/gpu/simulated'),
                          ('pip_uninstall', 'cyborg_gpu_driver'),
                          ('sudo', 'rmdir', 'cyborg/gpu')], record[-4:])
        self.assertFalse(self.state.exists())
        self.assertFalse(self.conf.exists())
        self.assertNotIn('warning:', self.done.stderr)

    def test_keeps_the_records_of_real_gpus(self):
        self.stack('post-config', settings=case.REAL)
        (self.state / 'journal.json').write_text('{}', encoding='utf-8')
        # Even if the settings ask for simulated GPUs by now.
        self.unstack('unstack', 'clean', settings=case.SIMULATED)
        self.assertIn(f'warning: {self.state} is left', self.done.stderr)
        self.assertTrue((self.state / 'journal.json').exists())
        self.assertFalse(self.unit.exists())
