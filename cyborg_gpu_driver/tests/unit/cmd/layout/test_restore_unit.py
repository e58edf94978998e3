# SPDX-License-Identifier: Apache-2.0

"""The systemd unit that restores GPUs at boot."""

import configparser
import pathlib
import re
import shutil
import subprocess

from oslotest import base

from cyborg_gpu_driver.baremetal import cleaning

_PATH = (pathlib.Path(__file__).resolve().parents[5]
         / 'etc/systemd/cyborg-gpu-restore.service')
_HIDES_HARDWARE = {
    'CapabilityBoundingSet', 'DeviceAllow', 'DevicePolicy', 'PrivateDevices',
    'PrivateNetwork', 'ProcSubset', 'ProtectClock', 'ProtectKernelModules',
    'ProtectKernelTunables', 'ProtectProc', 'User'}
"""Directives that would hide GPUs, sysfs, NVIDIA's modules and services, or
the processes that have a GPU open."""


def _read(text):
    # A unit may repeat a key, but not those that the tests read.
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(text)
    return unit


def _analyze(*arguments):
    return subprocess.run(['systemd-analyze', *arguments],
                          capture_output=True, text=True, check=False)


class RestoreUnitTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.text = _PATH.read_text(encoding='utf-8')
        self.unit = _read(self.text)

    def test_systemd_understands_it(self):
        if shutil.which('systemd-analyze') is None:
            self.skipTest('there is no systemd-analyze')
        done = _analyze('verify', str(_PATH))
        self.assertEqual((0, ''), (done.returncode, done.stderr))

    def test_it_is_no_more_exposed_than_the_unit_of_the_first_boot(self):
        if shutil.which('systemd-analyze') is None:
            self.skipTest('there is no systemd-analyze')
        first_boot = (pathlib.Path(cleaning.__file__).parent / cleaning.UNIT)
        levels = []
        for path in (_PATH, first_boot):
            done = _analyze('security', '--offline=true', str(path))
            found = re.search(r'Overall exposure level .*: ([0-9.]+)',
                              done.stdout)
            if found is None:
                self.skipTest('this systemd-analyze does not rate a file: '
                              + done.stderr)
            levels.append(float(found[1]))
        self.assertLessEqual(*levels)

    def test_it_may_reach_the_hardware(self):
        self.assertEqual(set(), _HIDES_HARDWARE & set(self.unit['Service']))
        self.assertIn('/etc/mdevctl.d',
                      self.unit['Service']['ReadWritePaths'])

    def test_it_runs_before_whatever_uses_gpus(self):
        before = {word for line in self.text.splitlines()
                  if line.startswith('Before=')
                  for word in line.partition('=')[2].split()}
        after = {word for line in self.text.splitlines()
                 if line.startswith('After=')
                 for word in line.partition('=')[2].split()}
        self.assertEqual(set(), before & after)
        for name in ('libvirtd', 'virtnodedevd', 'virtqemud',
                     'libvirt-guests', 'nova-compute',
                     'openstack-nova-compute', 'cyborg-agent',
                     'openstack-cyborg-agent', 'docker', 'podman',
                     'podman-restart', 'kubelet',
                     *(f'kolla-{name}-container' for name in (
                         'nova_libvirt', 'nova_compute', 'cyborg_agent'))):
            self.assertIn(f'{name}.service', before)
