# SPDX-License-Identifier: Apache-2.0

"""The systemd units."""

import configparser
import pathlib
import re
import shlex
import shutil
import subprocess

from oslotest import base

from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.cmd import main

_ETC = pathlib.Path(__file__).resolve().parents[3] / 'etc'
_RESTORE = _ETC / 'systemd/cyborg-gpu-restore.service'
_EXPORTER = _ETC / 'systemd/cyborg-gpu-exporter.service'
_DROP_IN = _ETC / 'systemd-drop-ins/cyborg-gpu-exporter-nvml.conf'
_FIRST_BOOT = pathlib.Path(cleaning.__file__).parent / cleaning.UNIT
_HIDES_HARDWARE = {
    'CapabilityBoundingSet', 'DeviceAllow', 'DevicePolicy', 'PrivateDevices',
    'PrivateNetwork', 'ProcSubset', 'ProtectClock', 'ProtectKernelModules',
    'ProtectKernelTunables', 'ProtectProc', 'User'}
"""Directives that would hide GPUs, sysfs, NVIDIA's modules and services, or
the processes that have a GPU open."""


def _service(path):
    """Return the section of a service."""
    # A unit may repeat a key, but not those that the tests read.
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(path.read_text(encoding='utf-8').replace('\\\n', ' '))
    return unit['Service']


def _parser(words):
    """Return the parser of one of our commands, and the words after its name.
    """
    app = main.CyborgGpu()
    factory, name, rest = app.command_manager.find_command(words)
    return factory(app, None).get_parser(name), rest


class UnitsTest(base.BaseTestCase):

    def analyze(self, *arguments):
        if shutil.which('systemd-analyze') is None:
            self.skipTest('there is no systemd-analyze')
        return subprocess.run(['systemd-analyze', *arguments],
                              capture_output=True, text=True, check=False)

    def test_systemd_understands_each(self):
        for path in (_RESTORE, _EXPORTER, _FIRST_BOOT):
            done = self.analyze('verify', str(path))
            self.assertEqual((0, ''), (done.returncode, done.stderr))

    def test_the_restore_is_no_more_exposed_than_the_first_boot(self):
        levels = []
        for path in (_RESTORE, _FIRST_BOOT):
            done = self.analyze('security', '--offline=true', str(path))
            found = re.search(r'Overall exposure level .*: ([0-9.]+)',
                              done.stdout)
            if found is None:
                self.skipTest('this systemd-analyze does not rate a file: '
                              + done.stderr)
            levels.append(float(found[1]))
        self.assertLessEqual(*levels)

    def test_those_that_change_gpus_may_reach_the_hardware(self):
        for path in (_RESTORE, _FIRST_BOOT):
            self.assertEqual(set(), _HIDES_HARDWARE & set(_service(path)))
        self.assertIn('/etc/mdevctl.d', _service(_RESTORE)['ReadWritePaths'])

    def test_the_restore_runs_before_whatever_uses_gpus(self):
        before, after = (
            {word for line in _RESTORE.read_text('utf-8').splitlines()
             if line.startswith(f'{key}=')
             for word in line.partition('=')[2].split()}
            for key in ('Before', 'After'))
        self.assertEqual(set(), before & after)
        for name in ('libvirtd', 'virtnodedevd', 'virtqemud',
                     'libvirt-guests', 'nova-compute',
                     'openstack-nova-compute', 'cyborg-agent',
                     'openstack-cyborg-agent', 'docker', 'podman',
                     'podman-restart', 'kubelet',
                     *(f'kolla-{name}-container' for name in (
                         'nova_libvirt', 'nova_compute', 'cyborg_agent'))):
            self.assertIn(f'{name}.service', before)

    def test_the_first_boot_waits_for_a_command_of_ours(self):
        service = _service(_FIRST_BOOT)
        words = shlex.split(service['ExecStart'])
        self.assertEqual(['/usr/bin/env', 'cyborg-gpu'], words[:2])
        parser, rest = _parser(words[2:])
        # systemd waits longer than the command needs, including GPU resets.
        self.assertGreater(int(service['TimeoutStartSec']),
                           parser.parse_args(rest).timeout + 300)

    def test_the_first_boot_says_what_its_command_cannot(self):
        """The unit reports a command that is missing or died by a signal."""
        words = shlex.split(_service(_FIRST_BOOT)['ExecStopPost'])
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

    def test_the_exporter_is_ours_and_takes_the_drop_in(self):
        words = shlex.split(_service(_EXPORTER)['ExecStart'])
        self.assertEqual(['/usr/bin/env', 'cyborg-gpu', '--config-file',
                          '/dev/null', 'exporter'], words[:5])
        self.assertEqual(['$HARDWARE', '$OPTIONS'], words[-2:])
        parser, rest = _parser(words[4:-2])
        parsed = parser.parse_args(rest)
        self.assertEqual(('/var/lib/cyborg/gpu', False),
                         (parsed.state_path, parsed.nvml))
        added = dict(_service(_DROP_IN))
        name, _, option = added.pop('Environment').partition('=')
        self.assertEqual('HARDWARE', name)
        self.assertTrue(parser.parse_args([*rest, option]).nvml)
        # It opens NVIDIA's devices and no others.
        self.assertEqual(
            {'PrivateDevices': 'no', 'DevicePolicy': 'closed',
             'DeviceAllow': 'char-nvidia* rw'}, added)
