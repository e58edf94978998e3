# SPDX-License-Identifier: Apache-2.0

"""The examples of contrib/kolla, in the released kolla and kolla-ansible."""

from __future__ import annotations

import configparser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import fixtures
import yaml
from oslo_utils import importutils

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests import upstream
from cyborg_gpu_driver.tests.installers import base as installers

ROOT = pathlib.Path(__file__).resolve().parents[3]
KOLLA = ROOT / 'contrib' / 'kolla'
KOLLA_ANSIBLE = pathlib.Path(sys.prefix, 'share', 'kolla-ansible')
BIN = pathlib.Path(sys.executable).parent
IMAGES = ('cyborg-agent', 'nova-compute', 'nova-scheduler',
          'ironic-conductor')
VENV = '/var/lib/kolla/venv/bin'

# An all-in-one host has every group, but only cyborg-agent is rendered.
INVENTORY = """\
[all]
localhost ansible_connection=local ansible_become=false
[cyborg-agent]
localhost
[cyborg-api]
[cyborg-conductor]
[memcached]
localhost
[rabbitmq]
localhost
[loadbalancer]
[mariadb]
localhost
"""
PLAY = """\
- hosts: localhost
  tasks:
    - ansible.builtin.import_role: {name: cyborg, tasks_from: config}
    - ansible.builtin.import_role: {name: cyborg, tasks_from: check-containers}
"""
# There is no container engine. The module notes what it is asked for, and
# each container differs from that, so the handler is notified.
MODULE = """\
#!/usr/bin/python
import json, os
from ansible.module_utils.basic import AnsibleModule
names = ('common_options name image volumes dimensions tmpfs volumes_from '
         'privileged cap_add environment healthcheck ipc_mode pid_mode '
         'security_opt labels command cgroupns_mode action').split()
module = AnsibleModule({name: {'type': 'raw'} for name in names})
with open(os.environ['NOTED'], 'a') as stream:
    stream.write(json.dumps(module.params) + '\\n')
module.exit_json(changed=True)
"""


class ImagesTest(installers.WorkCase):
    """What kolla-build renders with the template override."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        subprocess.run(
            [BIN / 'kolla-build', '--template-only', '--work-dir', cls.work,
             '--config-file', KOLLA / 'kolla-build.conf',
             '--template-override', KOLLA / 'template-override.j2',
             '--base', 'debian', *(f'^{image}$' for image in IMAGES)],
            check=True, capture_output=True, timeout=scope.HANG)

    def dockerfile(self, name):
        (path,) = self.work.glob(f'docker/*/{name}/Dockerfile')
        return path.read_text().replace('\\\n', ' ')

    def test_archives_reach_the_images_that_unpack_them(self):
        conf = configparser.ConfigParser()
        conf.read(KOLLA / 'kolla-build.conf')
        for section in conf.sections():
            image, kind = re.fullmatch(
                '(.+)-(plugin|additions)-cyborg-gpu-driver', section).groups()
            kind = kind.removesuffix('s') + 's'
            text = self.dockerfile(image)
            unpacked = text.index(f'ADD {kind}-archive /')
            self.assertRegex(text[unpacked:],
                             rf'pip [^\n]*install [^\n]*/{kind}/\*')
        # Images below nova-base have what it has.
        for image in ('nova-compute', 'nova-scheduler'):
            self.assertRegex(self.dockerfile(image), 'FROM .*/nova-base:')

    def test_nova_compute_is_our_command(self):
        text = self.dockerfile('nova-compute')
        (line,) = re.findall(r'^RUN (printf .*nova-compute)$', text, re.M)
        self.assertLess(text.index(line), text.index('\nUSER nova'))
        venv = self.useFixture(fixtures.TempDir()).path
        shutil.copy(BIN / 'cyborg-gpu-nova-compute', venv)
        shim = pathlib.Path(venv, 'nova-compute')
        shim.touch(0o755)
        subprocess.run(['sh', '-c', line.replace(VENV, venv)], check=True)
        done = subprocess.run([shim, '--version'], capture_output=True,
                              text=True, check=True, timeout=scope.HANG)
        self.assertIn('Nova', done.stderr)
        self.assertRegex(done.stdout + done.stderr, r'\b\d+\.\d+\.\d+\n')
        self.assertIn('attaches vGPUs', done.stderr)


class RoleTest(installers.WorkCase):
    """What kolla-ansible's patched role makes of the examples."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.play()

    @classmethod
    def play(cls):
        """Render the configuration of cyborg-agent, and note its container."""
        ansible = cls.work / 'ansible'
        upstream.copy_tree(KOLLA_ANSIBLE / 'ansible', ansible,
                           upstream.patches('kolla-ansible'))
        module = ansible / 'library' / 'kolla_container.py'
        module.unlink()
        module.write_text(MODULE)
        (ansible / 'inventory.ini').write_text(INVENTORY)
        play = ansible / 'play.yml'
        play.write_text(PLAY)
        passwords = yaml.safe_load((
            KOLLA_ANSIBLE / 'etc_examples' / 'kolla' / 'passwords.yml'
        ).read_text())
        cls.etc = cls.work / 'etc'
        variables = {
            **{name: value or 'secret' for name, value in passwords.items()},
            'ansible_python_interpreter': sys.executable,
            'node_config': str(cls.etc), 'node_config_directory': str(cls.etc),
            'node_custom_config': str(KOLLA / 'config'),
            'config_owner_user': 'root', 'config_owner_group': 'root',
            'kolla_internal_vip_address': '127.0.0.1', 'api_interface': 'lo',
            'network_interface': 'lo', 'project_name': 'cyborg',
            # Otherwise a filter of the collection ansible.utils is needed.
            'kolla_same_external_internal_vip': True}
        if os.getuid():
            variables['config_owner_user'] = str(os.getuid())
            variables['config_owner_group'] = str(os.getgid())
        given = cls.work / 'given.json'
        given.write_text(json.dumps(variables))
        noted = cls.work / 'noted'
        done = subprocess.run(
            [BIN / 'ansible-playbook', '-i', ansible / 'inventory.ini',
             '-e', f'@{KOLLA / "globals.yml"}',
             '-e', f'@{given}', play],
            cwd=ansible, capture_output=True, text=True, timeout=scope.HANG,
            check=False, env={
                'PATH': f'{BIN}:{os.environ["PATH"]}', 'NOTED': str(noted),
                'HOME': str(cls.work), 'LC_ALL': 'C.UTF-8',
                'ANSIBLE_LOCALHOST_WARNING': 'false'})
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        calls = map(json.loads, noted.read_text().splitlines())
        cls.calls = {call['action']: call for call in calls}

    def test_configuration_has_our_sections(self):
        conf = configparser.ConfigParser()
        conf.read(self.etc / 'cyborg-agent' / 'cyborg.conf')
        self.assertEqual('cyborg_gpu_driver', conf['agent']['enabled_drivers'])
        self.assertEqual('mig', conf['gpu_policy:slices']['mode'])
        self.assertEqual('password', conf['placement']['auth_type'])

    def test_weigher_and_filter_exist(self):
        conf = configparser.ConfigParser(strict=False)
        conf.read(KOLLA / 'config' / 'nova' / 'nova-scheduler.conf')
        scheduler = conf['filter_scheduler']
        for name in (scheduler['weight_classes'].rpartition(',')[2],
                     scheduler['available_filters']):
            self.assertTrue(name.startswith('cyborg_gpu_driver.'), name)
            self.assertIsNotNone(importutils.import_class(name))

    def test_container_sees_processes_and_keeps_records(self):
        for action in ('compare_container', 'recreate_or_restart_container'):
            call = self.calls[action]
            self.assertEqual('host', call['pid_mode'])
            for volume in ('/dev:/dev', '/run:/run:shared',
                           '/var/lib/cyborg:/var/lib/cyborg/'):
                self.assertIn(volume, call['volumes'])
            self.assertIn('libnvidia-ml.so.1', str(call['volumes']))
