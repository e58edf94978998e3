# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""A layout on a config drive that the released Ironic builds."""

import base64
import copy
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import types

import fixtures
import jsonschema
import pycdlib
from ironic.api.controllers.v1 import utils as api_utils
from ironic.conductor import configdrive_utils
from oslotest import base

from cyborg_gpu_driver.baremetal import layout_sources
from cyborg_gpu_driver.tests import command

_DRIVE = {
    'meta_data': {'hostname': 'node-1'},
    'vendor_data': {'cyborg_gpu_layout': {'halves': [
        {'devices': 'all', 'mig-enabled': True,
         'mig-devices': {'3g.40gb': 2}}]}}}
_BUILDERS = ('genisoimage', 'mkisofs', 'xorrisofs')
"""openstack.baremetal.configdrive builds the drive with one of these."""


class ConfigDriveTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        if not any(map(shutil.which, _BUILDERS)):
            self.skipTest('Ironic builds a config drive with one of '
                          + ', '.join(_BUILDERS) + ', and there is none')
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        node = types.SimpleNamespace(uuid='uuid-of-a-node', name='node-1')
        self.image = self.directory / 'drive.iso'
        self.image.write_bytes(gzip.decompress(base64.b64decode(
            configdrive_utils.build_configdrive(
                node, copy.deepcopy(_DRIVE)))))

    def write(self, name, text):
        path = self.directory / name
        path.write_text(text, encoding='utf-8')
        return str(path)

    def extracted(self):
        """The files of the drive, as Linux names them (Rock Ridge)."""
        root = self.directory / 'extracted'
        image = pycdlib.PyCdlib()
        image.open(str(self.image))
        for directory, _, names in image.walk(rr_path='/'):
            place = root / directory.lstrip('/')
            place.mkdir(parents=True)
            for name in names:
                image.get_file_from_iso(
                    str(place / name), rr_path=os.path.join(directory, name))
        image.close()
        return root

    def boot(self, *arguments):
        """The report of a first boot with eight H100 GPUs."""
        conf = self.write('gpu.conf', '[gpu]\nsimulate = hgx-h100\n'
                          f'state_path = {self.directory / "state"}\n')
        code, output, errors = command.run(
            '--config-file', conf, 'firstboot', '-f', 'json',
            '--metadata-timeout', '0', *arguments)
        self.assertEqual(0, code, errors)
        return json.loads(output)

    def test_ironic_s_api_takes_it(self):
        jsonschema.validate(_DRIVE, api_utils._CONFIG_DRIVE_SCHEMA)

    def test_the_first_boot_reads_it(self):
        report = self.boot('--config-drive', str(self.extracted()))
        self.assertEqual(
            ('applied', 'halves',
             'config drive, vendor_data2.json, cyborg_gpu_layout'),
            tuple(report[key] for key in ('result', 'layout', 'source')))
        self.assertEqual({'2 x 3g.40gb'},
                         {gpu['wanted'] for gpu in report['gpus']})

    def test_the_drive_is_mounted(self):
        if os.geteuid() != 0:
            self.skipTest('only root can mount a file system')
        known = pathlib.Path('/proc/filesystems').read_text(encoding='ascii')
        if '\tiso9660\n' not in known:
            self.skipTest('this kernel does not know iso9660')
        done = subprocess.run(
            ['losetup', '--find', '--show', '--read-only', str(self.image)],
            check=False, capture_output=True, text=True)
        if done.returncode:
            self.skipTest(f'no loop device: {done.stderr.strip()}')
        device = done.stdout.strip()
        self.addCleanup(subprocess.run, ['losetup', '--detach', device],
                        check=True)
        labels = self.directory / 'by-label'
        labels.mkdir()
        (labels / 'config-2').symlink_to(device)
        with layout_sources.opened(str(labels)) as directory:
            self.assertEqual('halves', self.boot(
                '--config-drive', directory)['layout'])
