# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu doctor`` on simulated hosts, without a cloud."""

import json
import os
import socket
import subprocess
import sys
import threading

import testtools

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.doctor import command as doctor
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program import cordons
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.cloud import keystone
from cyborg_gpu_driver.tests.unit.cmd import base

_CONFIG = ('''
[agent]
enabled_drivers = cyborg_gpu_driver
[gpu]
policies = p
[gpu_policy:p]
mode = mig
''')


class DoctorTest(base.HostCase):

    config = _CONFIG

    def setUp(self):
        super().setUp()
        keystone.forget_clouds(self)
        self.addCleanup(setattr, privileged, '_platform', None)
        self.addCleanup(privileged.privsep.gpu_context.set_client_mode, True)
        self.hardware = self.machine()
        self.nova = ('--nova-config-file', self.write(
            'nova.conf', '[service_user]\nsend_service_user_token = true\n'
            'auth_type = password\n'))

    def doctor(self, *arguments, code=0):
        """Run a command and return its rows and its standard error."""
        output, said = self.run_on_host(*arguments, code=code)
        return output and json.loads(output), said

    def compared(self, *arguments, code=0):
        """The differences and what could not be examined, and the messages."""
        rows, said = self.doctor('doctor', '-f', 'json', *self.nova,
                                 *arguments, code=code)
        return rows, said

    def test_what_cannot_be_read_is_not_compared(self):
        self.hardware.lose_gpu('0000:0f:00.0')
        rows, said = self.compared(code=1)
        self.assertEqual(
            {('nvml', 'warning', '0000:0f:00.0'),
             ('unhealthy-gpu', 'error', '0000:0f:00.0')},
            {tuple(row[name] for name in ('code', 'severity', 'gpu'))
             for row in rows})
        self.assertIn('lost', rows[0]['message'])
        self.assertNotIn('No problem', said)

    def test_a_difference_is_listed_with_its_remedy(self):
        self.create_instance(self.hardware, 0, 19, 6, 1)
        for arguments in ((), ('--repair',)):
            (row,), _ = self.compared(*arguments, code=1)
            self.assertEqual(
                ['code', 'severity', 'gpu', 'subject', 'message', 'action',
                 'safe'], [*row])
            self.assertEqual(
                ('foreign-instance', 'error', '0000:07:00.0', '1g.10gb@6',
                 False),
                tuple(row[key] for key in ('code', 'severity', 'gpu',
                                           'subject', 'safe')))
            self.assertIn('nvidia-smi mig -i 0000:07:00.0 -dci -gi ',
                          row['action'])

    def test_a_cloud_that_cannot_be_asked(self):
        cloud = ('--os-cloud', 'nowhere')
        (row,), _ = self.compared(*cloud, code=2)
        self.assertEqual(('not-examined', 'unknown', None),
                         tuple(row[key] for key in ('code', 'severity',
                                                    'gpu')))
        self.assertIn('nowhere', row['message'])
        # The doctor repairs nothing without the cloud's data.
        _, said = self.doctor('doctor', '--repair', *cloud, code=1)
        self.assertIn('nowhere', said)
        self.assertEqual([], self.compared(*cloud, '--without-cloud')[0])

    def test_a_journal_that_is_lost(self):
        path = self.damage_record('0000:07:00.0')
        rows, _ = self.compared(code=1)
        # The same record also contains the health of the GPU.
        self.assertEqual(
            {('bad-record', '0000:07:00.0'), ('not-examined', None)},
            {(row['code'], row['gpu']) for row in rows})
        self.assertIn(path, rows[0]['message'])
        _, said = self.compared('--repair', code=1)
        self.assertIn('Lost claims were rebuilt.', said)
        # An operator has to say that the GPU is in order.
        (row,), _ = self.compared(code=1)
        self.assertIn('gpu uncordon 0000:07:00.0', str(row))
        cordons.GpuCordons(os.path.dirname(os.path.dirname(path))).lift(
            model.PciAddress.parse('0000:07:00.0'))
        self.assertEqual([], self.compared()[0])

    def test_a_record_of_a_gpu_that_is_missing(self):
        # Stands for an unreadable file, because root can read any file.
        os.makedirs(f'{self.state_path}/gpus/0000:99:00.0.json')
        (row,), _ = self.compared(code=1)
        self.assertEqual(('bad-record', '0000:99:00.0'),
                         (row['code'], row['gpu']))
        self.assertIn('readable for the user of cyborg-agent', row['action'])

    def test_all_parts(self):
        self.hardware.set_health('0000:0f:00.0', uncorrected=2)
        self.create_instance(self.hardware, 0, 19, 6, 1)
        rows, _ = self.doctor('doctor', '-f', 'json', code=1)
        found = {(row['code'], row['gpu']): row for row in rows}
        self.assertIn('health clear 0000:0f:00.0',
                      found['unhealthy-gpu', '0000:0f:00.0']['action'])
        self.assertIn(('foreign-instance', '0000:07:00.0'), found)
        self.assertIn('no nova.conf', found['not-examined', None]['message'])
        self.assertTrue(all(row['action'] for row in rows))

    def test_eight_equal_gpus_take_few_lines(self):
        config = self.configure(
            '[gpu]\npolicies = p\nprepare = false\n'
            '[gpu_policy:p]\nmode = mig\n', self.directory)
        output, said = self.run_program(
            '--config-file', config, '--simulate', 'hgx-h100-vfio', 'doctor',
            code=1)
        lines = (output + said).splitlines()
        self.assertLessEqual(len(lines), 60)
        self.assertIn('and 5 more', output)

    def test_a_gpu_that_hangs(self):
        """The command ends, although NVML never returns."""
        state = self.directory + '/two'
        config = self.configure(
            '[gpu]\npolicies = p\nnvml_timeout = 3600\n'
            '[gpu_policy:p]\nmode = mig\n', self.directory)
        machine = simulator.Machine.load('h100nvlx2', state)
        machine.hang_gpu('0000:17:00.0')
        self.addCleanup(machine.hang_gpu, '0000:17:00.0', False)
        done = subprocess.run(
            [sys.executable, '-m', 'cyborg_gpu_driver.cmd.main',
             '--config-file', config, '--simulate', 'h100nvlx2', '--state',
             state, 'doctor', '-f', 'json', '--timeout', '0.5'],
            capture_output=True, text=True, check=False, timeout=scope.HANG)
        self.assertEqual(2, done.returncode, done.stderr)
        (row,) = json.loads(done.stdout)
        self.assertEqual(
            ('not-examined', 'unknown',
             'the GPUs: it took longer than 0.5 seconds'),
            tuple(row[name] for name in ('code', 'severity', 'message')))
        self.assertNotIn('No problem', done.stderr)

    def test_placement_does_not_answer(self):
        with (socket.socket() as closed,
              socket.create_server(('127.0.0.1', 0)) as silent):
            # The first socket is bound and does not listen, so the kernel
            # refuses connections. The other accepts and sends nothing.
            closed.bind(('127.0.0.1', 0))
            for server in (closed, silent):
                self.conf = self.configure(
                    f'{_CONFIG}[placement]\nauth_type = admin_token\n'
                    'token = x\n'
                    f'endpoint = http://127.0.0.1:{server.getsockname()[1]}\n'
                    'timeout = 1\n', self.directory)
                rows, said = self.compared('--timeout', '3', code=2)
                self.assertEqual(
                    {('not-examined', 'unknown')},
                    {(row['code'], row['severity']) for row in rows})
                self.assertIn('Placement', rows[0]['message'])
                self.assertNotIn('No problem', said)


_GPU = '0000:07:00.0'


class TestHealth(base.HostCase):

    def setUp(self):
        super().setUp()
        self.hardware = self.machine()

    def doctor(self):
        """Return the findings about the health of GPUs and instances."""
        rows = self.rows_on_host('doctor', code=1)
        return [(row['code'], row['gpu'], row['subject'], row['message'])
                for row in rows if row['code'].startswith('unhealthy')]

    def test_unhealthy_by_what_the_agent_knows_until_it_is_cleared(self):
        agent = health.GpuHealth(
            platform.open_platform(self.hardware), self.state_path,
            services.Services(), clock=lambda: 86400.0)
        self.addCleanup(self.hardware.uninstall)
        agent.event(condition.Event(model.PciAddress.parse(_GPU), 119))
        ((_, _, _, message),) = self.doctor()
        self.assertIn('transient since 1970-01-02T00:00:00+00:00', message)
        self.assertIn('XID 119 (the GPU system processor does not answer)',
                      message)
        self.run_on_host('health', 'clear', _GPU)
        self.assertEqual([], self.doctor())

    def test_an_instance_has_a_finding_of_its_own(self):
        machine = platform.open_platform(self.hardware)
        self.addCleanup(self.hardware.uninstall)
        address = model.PciAddress.parse(_GPU)
        instance = machine.nvml.create_gpu_instance(
            machine.nvml.device(address), 14, model.Placement(2, 2))
        health.GpuHealth(
            machine, self.state_path, services.Services()).event(
            condition.Event(address, 94, instance.instance_id))
        self.assertEqual(
            [('unhealthy-instance', _GPU, '2:2')],
            [item[:3] for item in self.doctor()])

    def test_a_dead_virtual_function(self):
        machine = platform.open_platform(self.hardware)
        self.addCleanup(self.hardware.uninstall)
        function = '0000:07:01.2'
        health.GpuHealth(
            machine, self.state_path, services.Services()).function_died(
            *map(model.PciAddress.parse, (_GPU, function)))
        rows = self.rows_on_host('doctor', code=1)
        self.assertIn(('dead-function', function), [
            (row['code'], row['subject']) for row in rows])

    def test_no_such_address(self):
        self.run_on_host('health', 'clear', 'x', code=1)


_ADDRESS = model.PciAddress.parse('0000:07:00.0')
_ERROR = finding.error(None, 'it is', 'do')


class AttemptTest(testtools.TestCase):

    def test_one_that_hangs(self):
        ended = threading.Event()
        self.addCleanup(ended.set)
        (found,) = doctor.findings_of('the GPUs', 0.01, ended.wait)
        self.assertEqual(
            (finding.NOT_EXAMINED, finding.Severity.UNKNOWN,
             'the GPUs: it took longer than 0.01 seconds'),
            (found.code, found.severity, found.message))

    def test_one_that_fails(self):
        for error, text in (
                (exception.HostUnusable(reason='no'), 'no'),
                (OSError(5, 'Input/output error'),
                 'OSError: [Errno 5] Input/output error'),
                (KeyError('x'), "KeyError: 'x'")):
            def look(error=error):
                yield _ERROR
                raise error

            (found,) = doctor.findings_of('the GPUs', 60, look)
            self.assertEqual(finding.NOT_EXAMINED, found.code)
            self.assertIn(text, found.message)


class FindingTest(testtools.TestCase):

    def test_exit_codes(self):
        warning = finding.warning(None, 'm', 'a')
        unknown = finding.unknown(None, 'm', 'a')
        for findings, code in (
                ((), 0), ((_ERROR,), 1), ((warning,), 1), ((unknown,), 2),
                ((unknown, warning), 1)):
            self.assertEqual(code, finding.exit_code(findings))

    def test_equal_findings_are_grouped(self):
        gpus = [str(_ADDRESS), '0000:0f:00.0', '0000:47:00.0']
        found = [_ERROR, *(
            finding.error(gpu, f'GPU {gpu} is off', f'turn {gpu} on')
            for gpu in gpus[:2]), finding.error(gpus[2], 'it is lost', 'do')]
        self.assertEqual(
            [('it is', 'do', []),
             ('GPU GPU is off', 'turn GPU on', gpus[:2]),
             ('it is lost', 'do', gpus[2:])],
            [(item.message, item.action, names)
             for item, names in doctor.grouped(found)])
        # A single finding names its GPU.
        ((item, _),) = doctor.grouped(found[1:2])
        self.assertEqual(f'turn {_ADDRESS} on', item.action)
