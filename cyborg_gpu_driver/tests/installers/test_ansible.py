# SPDX-License-Identifier: Apache-2.0


"""The collection contrib/ansible, on a simulated host."""

from __future__ import annotations

import configparser
import os
import pathlib
import re
import subprocess
import sys

import yaml
from oslotest import base

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.installers import base as installers

ROOT = pathlib.Path(__file__).resolve().parents[3]
COLLECTION = ROOT / 'contrib' / 'ansible'
BIN = pathlib.Path(sys.executable).parent

VARIABLES = {
    'ansible_connection': 'local', 'ansible_become': False,
    'ansible_python_interpreter': sys.executable,
    'cyborg_gpu_virtualenv': sys.prefix,
    'cyborg_gpu_agent_user': 'nobody',
    'cyborg_gpu_kernel_arguments': ['intel_iommu=on', 'iommu=pt'],
    'cyborg_gpu_units': False,
    'cyborg_gpu_nova_config_file': '/etc/nova/nova.conf.d/cyborg-gpu.conf',
    'cyborg_gpu_options': {
        'agent': {'enabled_drivers': 'cyborg_gpu_driver'},
        'gpu': {'simulate': 'l40sx4', 'policies': 'render'},
        'gpu_policy:render': {'mode': 'vgpu', 'fixed_vgpus': 'L40S-12Q:4'}}}
# What the role changes is in memory or in the test's directory, and nothing
# outside of this mount namespace sees it.
SCRIPT = """
set -e
mount --make-rprivate /
cp -a /etc "$WORK/etc"
mount --bind "$WORK/etc" /etc
for place in /var/lib /var/cache /opt; do mount -t tmpfs none $place; done
mkdir -p /etc/modprobe.d /etc/modules-load.d /etc/sudoers.d
find /etc /var/lib /var/cache | sort >"$WORK/before"
play() {
    ansible-playbook -i localhost, -e "@$WORK/variables.yml" \
        "cyborg_gpu_driver.gpu.$1"
}
play host
play host
cp -a "$WORK/etc" "$WORK/configured"
play remove
play remove
find /etc /var/lib /var/cache | sort | diff "$WORK/before" - >"$WORK/left" || :
"""
# Programs of the boot loader and of sudo are not on every test machine, and
# must not run on it.
PROGRAMS = ('update-grub', 'update-initramfs', 'visudo')


class VariablesTest(base.BaseTestCase):

    def test_every_variable_is_described(self):
        role = COLLECTION / 'roles' / 'cyborg_gpu'
        specs = yaml.safe_load((role / 'meta' / 'argument_specs.yml')
                               .read_text())['argument_specs']['main']
        defaults = yaml.safe_load((role / 'defaults' / 'main.yml')
                                  .read_text())
        self.assertEqual(defaults, {
            name: option['default']
            for name, option in specs['options'].items()})
        # The playbook has one more.
        known = {*defaults, 'cyborg_gpu_hosts'}
        used = {name for path in (COLLECTION / 'examples').rglob('*.y*ml')
                for name in re.findall(r'\bcyborg_gpu_\w+(?=:)',
                                       path.read_text())}
        self.assertGreater(len(used), 5)
        self.assertEqual(set(), used - known)


class RoleTest(installers.WorkCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not pathlib.Path('/etc/debian_version').exists():
            raise cls.skipException('the test knows the commands of Debian')
        if subprocess.run(['unshare', '--mount', 'true'], check=False,
                          capture_output=True).returncode:
            raise cls.skipException('no mount namespace can be created')
        cls.play()

    @classmethod
    def play(cls):
        collections = cls.work / 'ansible_collections' / 'cyborg_gpu_driver'
        collections.mkdir(parents=True)
        (collections / 'gpu').symlink_to(COLLECTION)
        (cls.work / 'variables.yml').write_text(yaml.safe_dump(VARIABLES))
        programs = cls.work / 'bin'
        programs.mkdir()
        for name in PROGRAMS:
            (programs / name).write_text(
                f'#!/bin/sh\necho {name} "$@" >>"$WORK/calls"\n')
            (programs / name).chmod(0o755)
        done = subprocess.run(
            ['unshare', '--mount', 'sh', '-c', SCRIPT], text=True,
            capture_output=True, check=False, timeout=scope.HANG, cwd=cls.work,
            env={'PATH': f'{programs}:{BIN}:{os.environ["PATH"]}',
                 'HOME': str(cls.work), 'WORK': str(cls.work),
                 'LC_ALL': 'C.UTF-8', 'ANSIBLE_PIPELINING': '1',
                 'ANSIBLE_COLLECTIONS_PATH': str(cls.work)})
        cls.output = done.stdout + done.stderr
        assert done.returncode == 0, cls.output[-6000:]
        cls.etc = cls.work / 'configured'

    def read(self, name):
        return (self.etc / name).read_text()

    def test_second_run_changes_nothing(self):
        first, second, removal, again = map(int, re.findall(
            r'changed=(\d+)', self.output))
        self.assertGreater(first, 10)
        self.assertEqual(0, second, self.output)
        self.assertGreater(removal, 5)
        self.assertEqual(0, again, self.output)

    def test_removal_leaves_what_was_there(self):
        left = {line for line in (self.work / 'left').read_text()
                .splitlines() if line[0] in '<>'}
        # Cyborg, Nova and GRUB have these, too.
        shared = ('/etc/cyborg', '/etc/cyborg/cyborg.conf', '/var/lib/cyborg',
                  '/etc/nova', '/etc/nova/nova.conf.d', '/etc/default/grub.d')
        self.assertEqual(set(), left - {f'> {path}' for path in shared})
        self.assertEqual(
            '', (self.work / 'etc/cyborg/cyborg.conf').read_text())

    def test_kernel(self):
        self.assertIn('blacklist nouveau\n',
                      self.read('modprobe.d/cyborg-gpu.conf'))
        self.assertIn(' intel_iommu=on iommu=pt"',
                      self.read('default/grub.d/cyborg-gpu.cfg'))
        calls = (self.work / 'calls').read_text().splitlines()
        self.assertEqual(['update-grub', 'update-initramfs -u -k all'],
                         sorted(calls[:2]))

    def test_nova_gets_the_fixed_vgpus(self):
        lines = self.read('nova/nova.conf.d/cyborg-gpu.conf').splitlines()
        self.assertEqual(16, sum(line.startswith('device_spec = ')
                                 for line in lines))

    def test_helper(self):
        helper = (f'{sys.prefix}/bin/privsep-helper --config-file '
                  '/etc/cyborg/cyborg.conf')
        text = self.read('sudoers.d/cyborg-gpu')
        self.assertIn(f'Cmnd_Alias CYBORG_GPU = {helper} ', text)
        self.assertIn('\nnobody ALL = (root) NOPASSWD: CYBORG_GPU\n', text)
        conf = configparser.ConfigParser()
        conf.read(self.etc / 'cyborg' / 'cyborg.conf')
        self.assertEqual(f'sudo {helper}',
                         conf['cyborg_gpu_privileged']['helper_command'])

    def test_units_start_what_is_installed(self):
        for name, command in (('restore', 'layout restore'),
                              ('exporter', 'exporter --state-path')):
            unit = f'systemd/system/cyborg-gpu-{name}.service'
            self.assertIn('[Unit]\n', self.read(unit))
            self.assertRegex(
                self.read(f'{unit}.d/cyborg-gpu.conf'),
                rf'ExecStart=\nExecStart={sys.prefix}/bin/cyborg-gpu '
                rf'--config-file \S+ {command}')
