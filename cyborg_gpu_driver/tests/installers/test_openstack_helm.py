# SPDX-License-Identifier: Apache-2.0

"""The values of contrib/openstack-helm, in the patched chart.

No package has the charts, so the test needs a clone of openstack-helm, and
helm as a library, helm-python-sdk.
"""

from __future__ import annotations

import base64
import configparser
import os
import pathlib

import yaml
from oslo_utils import importutils

from cyborg_gpu_driver.tests import upstream
from cyborg_gpu_driver.tests.installers import base as installers

CHARTS = os.environ.get('CYBORG_GPU_OPENSTACK_HELM')
VALUES = installers.ROOT / 'contrib' / 'openstack-helm' / 'cyborg.yaml'
helm = importutils.try_import('helm_python')


class ChartTest(installers.WorkCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not CHARTS:
            raise cls.skipException(
                'CYBORG_GPU_OPENSTACK_HELM names no clone of openstack-helm')
        if not helm:
            raise cls.skipException('helm-python-sdk is not installed')
        chart = cls.work / 'cyborg'
        upstream.copy_tree(pathlib.Path(CHARTS, 'cyborg').resolve(), chart,
                           upstream.patches('openstack-helm'))
        (chart / 'charts').mkdir()
        (chart / 'charts' / 'helm-toolkit').symlink_to(
            pathlib.Path(CHARTS, 'helm-toolkit').resolve())
        files = helm.Chart.load(chart).render(yaml.safe_load(
            VALUES.read_text()))
        (text,) = (text for name, text in files.items()
                   if name.endswith('/daemonset-agent.yaml'))
        cls.objects = {found['kind']: found
                       for found in yaml.safe_load_all(text) if found}

    def test_pod_sees_the_host_and_keeps_the_records(self):
        pod = self.objects['DaemonSet']['spec']['template']['spec']
        self.assertTrue(pod['hostPID'])
        (container,) = pod['containers']
        paths = {volume['name']: volume.get('hostPath', {}).get('path')
                 for volume in pod['volumes']}
        mounted = {mount['mountPath']: paths[mount['name']]
                   for mount in container['volumeMounts']}
        for path in ('/dev', '/run', '/var/lib/cyborg',
                     '/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1'):
            self.assertEqual(path, mounted[path])

    def test_every_file_of_the_command_is_there(self):
        (container,) = self.objects['DaemonSet']['spec']['template'][
            'spec']['containers']
        mounted = {mount['mountPath'] for mount in container['volumeMounts']}
        self.assertEqual([], [word for word in container['command']
                              if '/' in word and word not in mounted])

    def test_configuration_has_our_sections(self):
        conf = configparser.ConfigParser()
        conf.read_string(base64.b64decode(
            self.objects['Secret']['data']['cyborg.conf']).decode())
        self.assertEqual('cyborg_gpu_driver', conf['agent']['enabled_drivers'])
        self.assertEqual('mig', conf['gpu_policy:slices']['mode'])
