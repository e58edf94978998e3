# SPDX-License-Identifier: Apache-2.0

"""The unit that runs at the boot of a staged image."""

import configparser
import shlex
import shutil
import subprocess

import fixtures
from oslotest import base

from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.cmd import main


class UnitTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        # A unit may repeat a key, but not those that the tests read.
        self.unit = configparser.ConfigParser(strict=False,
                                              interpolation=None)
        self.unit.optionxform = str
        self.unit.read_string(cleaning.unit_text())

    def test_systemd_understands_it(self):
        if shutil.which('systemd-analyze') is None:
            self.skipTest('there is no systemd-analyze')
        directory = self.useFixture(fixtures.TempDir()).path
        path = f'{directory}/{cleaning.UNIT}'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(cleaning.unit_text())
        done = subprocess.run(['systemd-analyze', 'verify', path],
                              capture_output=True, text=True, check=False)
        self.assertEqual((0, ''), (done.returncode, done.stderr))

    def test_it_runs_a_command_of_ours(self):
        words = shlex.split(self.unit['Service']['ExecStart'])
        self.assertEqual(['/usr/bin/env', 'cyborg-gpu'], words[:2])
        app = main.CyborgGpu()
        factory, name, rest = app.command_manager.find_command(words[2:])
        parsed = factory(app, None).get_parser(name).parse_args(rest)
        # systemd waits longer than the command needs, including GPU resets.
        self.assertGreater(
            int(self.unit['Service']['TimeoutStartSec']),
            parsed.timeout + 300)

    def test_it_says_what_the_command_cannot(self):
        """The unit reports a command that is missing or died by a signal."""
        words = shlex.split(
            self.unit['Service']['ExecStopPost'].replace('\\\n', ' '))
        self.assertEqual(['/bin/sh', '-c'], words[:2])
        # systemd reads two dollars as one (systemd.service, COMMAND LINES).
        script = words[2].replace('$$', '$')
        self.assertNotIn('$$', script)
        for outcome, status, said in (
                ('success', '0', False), ('exit-code', '1', False),
                ('exit-code', '2', False), ('exit-code', '127', True),
                ('timeout', 'TERM', True), ('oom-kill', 'KILL', True)):
            done = subprocess.run(
                ['/bin/sh', '-c', script], capture_output=True, text=True,
                check=True, env={'SERVICE_RESULT': outcome,
                                 'EXIT_STATUS': status})
            self.assertEqual(
                'cyborg-gpu-firstboot: result=failed '
                f'reason={outcome}:{status}\n' if said else '', done.stdout)

    def test_it_may_reach_the_hardware(self):
        """No option hides the GPUs, sysfs or the driver's modules."""
        self.assertEqual(set(), {
            'PrivateDevices', 'ProtectClock', 'ProtectKernelTunables',
            'ProtectKernelModules', 'DevicePolicy', 'PrivateNetwork',
            'CapabilityBoundingSet'} & set(self.unit['Service']))
