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

"""Valid and invalid configuration files of the device plugin."""

import hypothesis
import yaml
from hypothesis import strategies
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.kubernetes import plugin
from cyborg_gpu_driver.tests import scope

# From the documentation and the tests of the device plugin and of the GPU
# operator.
DOCUMENTED = {
    'README, as a configuration file': """
version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: "envvar"
    deviceIDStrategy: "uuid"
""",
    'README, time-slicing': """
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 10
""",
    'README, time-slicing, renamed': """
version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 10
""",
    'README, MPS': """
version: v1
sharing:
  mps:
    renameByDefault: true
    resources:
    - name: nvidia.com/gpu
      replicas: 10
""",
    'api/config/v1/config_test.go, MPS': """
version: v1
sharing:
  mps:
    failRequestsGreaterThanOne: false
    resources:
      - name: nvidia.com/gpu
        replicas: 2
""",
    'GPU operator, values.yaml': """
version: v1
flags:
  migStrategy: mixed
""",
    'time-slicing of MIG devices': """
version: v1
flags:
  migStrategy: mixed
sharing:
  timeSlicing:
    renameByDefault: false
    failRequestsGreaterThanOne: false
    resources:
      - name: nvidia.com/gpu
        replicas: 8
      - name: nvidia.com/mig-1g.5gb
        replicas: 2
      - name: mig-3g.20gb
        replicas: 2
""",
    'all fields of api/config/v1': """
version: v1
flags:
  migStrategy: single
  failOnInitError: false
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /
  gdrcopyEnabled: false
  gdsEnabled: false
  mofedEnabled: true
  useNodeFeatureAPI: true
  deviceDiscoveryStrategy: auto
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
    cdiAnnotationPrefix: cdi.k8s.io/
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    containerDriverRoot: /driver-root
    sharedDevicesAllocationPolicy: packed
  gfd:
    oneshot: false
    noTimestamp: true
    sleepInterval: 1m30s
    outputFile: /etc/kubernetes/node-feature-discovery/features.d/gfd
    machineTypeFile: /sys/class/dmi/id/product_name
resources:
  gpus:
    - {pattern: '*', name: gpu}
  mig:
    - {pattern: '1g.*', name: nvidia.com/mig-small}
sharing:
  timeSlicing:
    resources:
      - name: gpu
        rename: gpu.shared
        replicas: 2
        devices: [0, '1', '2:3', GPU-b1028956-cfa2-0990-bf4a-5da9abb51763,
                  MIG-b1028956-cfa2-0990-bf4a-5da9abb51763,
                  MIG-GPU-b1028956-cfa2-0990-bf4a-5da9abb51763/3/0]
      - {name: mig-small, replicas: 3, devices: all}
      - {name: other, replicas: 3, devices: 2}
imex:
  channelIDs: [0]
  required: true
""",
    'no version is this one': '{"sharing": {}}',
}

_SHARING = ('sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, '
            'replicas: 4, OTHER}]}}')
_TWICE = ('sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}, '
          '{name: nvidia.com/gpu, replicas: 2}]}}')
# (text, place, part of the remedy)
WRONG = (
    ('', 'top level', 'version, flags'),
    ('[]', 'top level', 'version, flags'),
    ('{', 'top level', 'correct it'),
    ('version: v2', 'version', 'expected v1'),
    ('version: 1', 'version', 'expected v1'),
    ('flag: {}', 'top level', 'flags'),
    ('flags: {migstrategy: none}', 'flags', 'known keys: migStrategy'),
    ('flags: {migStrategy: both}', 'flags.migStrategy',
     "found 'both'; expected none, single or mixed"),
    ('flags: {failOnInitError: "true"}', 'flags.failOnInitError',
     'true or false'),
    ('flags: {mpsRoot: null}', 'flags.mpsRoot', 'text'),
    ('flags: {plugin: {deviceListStrategy: [env]}}',
     'flags.plugin.deviceListStrategy[0]', "found 'env'; expected envvar"),
    ('flags: {plugin: {deviceIDStrategy: 1}}',
     'flags.plugin.deviceIDStrategy', 'uuid'),
    ('flags: {plugin: {migStrategy: none}}', 'flags.plugin',
     'passDeviceSpecs'),
    ('flags: {gfd: {sleepInterval: 1 minute}}', 'flags.gfd.sleepInterval',
     '60s'),
    ('resources: {gpus: [{name: gpu}]}', 'resources.gpus[0]', 'pattern'),
    ('resources: {gpus: {}}', 'resources.gpus', 'list'),
    ('resources: {mig: [{name: A, pattern: a}]}', 'resources.mig[0].name',
     'lower case'),
    ('sharing: {timeSlicing: {}}', 'sharing.timeSlicing', 'resources'),
    ('sharing: {mps: {resources: []}}', 'sharing.mps.resources', 'at least'),
    ('sharing: {time-slicing: {}}', 'sharing', 'timeSlicing'),
    ('sharing: {mps: {}, timeSlicing: {}}', 'sharing',
     'timeSlicing or mps'),
    (_TWICE, 'sharing.timeSlicing.resources[1]', 'keep one'),
    (_SHARING.replace('4', '1'), 'resources[0].replicas', 'from 2'),
    (_SHARING.replace('4', 'true'), 'resources[0].replicas', 'from 2'),
    (_SHARING.replace('4', '2.0'), 'resources[0].replicas', 'from 2'),
    (_SHARING.replace('OTHER', 'rename: a/b'), 'resources[0].rename',
     "found 'a/b'; expected nvidia.com/NAME of at most 63 characters"),
    (_SHARING.replace('OTHER', 'devices: some'), 'resources[0].devices',
     'all'),
    (_SHARING.replace('OTHER', 'devices: 0'), 'devices', 'from 1'),
    (_SHARING.replace('OTHER', 'devices: []'), 'devices',
     'a list of at least one item, each the index'),
    (_SHARING.replace('OTHER', 'devices: [true]'), 'devices[0]',
     'found true; expected the index of a GPU'),
    (_SHARING.replace('OTHER', 'devices: [GPU-1]'), 'devices[0]',
     "found 'GPU-1'; expected the index of a GPU"),
    ('imex: {channelIDs: [1]}', 'imex.channelIDs[0]', 'expected 0'),
    ('imex: {channelIDs: [false]}', 'imex.channelIDs[0]', 'expected 0'),
    ('imex: {channelIDs: [0, 0]}', 'imex.channelIDs', 'found 2 items'),
    ('imex: {required: 1}', 'imex.required', 'true or false'),
    ('{flags: {migStrategy: mixed}, sharing: {mps: {resources: '
     '[{name: gpu, replicas: 2}]}}}', 'sharing', 'timeSlicing'),
)


class PluginConfigTest(base.BaseTestCase):

    def test_documented_files_come_back_as_they_are(self):
        for name, text in DOCUMENTED.items():
            value = plugin.parse_config(text, name)
            self.assertEqual(yaml.safe_load(text), value)
            self.assertEqual(value, plugin.parse_config(
                yaml.safe_dump(value), name))

    def test_wrong_files_are_refused_with_place_and_remedy(self):
        for text, place, remedy in WRONG:
            text = text.replace(', OTHER', '')
            error = self.assertRaises(
                exception.DocumentError, plugin.parse_config, text,
                'x.yaml')
            self.assertTrue(str(error).startswith('x.yaml: '), text)
            self.assertIn(f'{place}: ', str(error), text)
            self.assertIn(remedy, str(error), text)

    @hypothesis.given(strategies.recursive(
        strategies.none() | strategies.booleans() | strategies.integers()
        | strategies.floats() | strategies.text(),
        lambda inner: strategies.lists(inner, max_size=3)
        | strategies.dictionaries(strategies.sampled_from((
            'version', 'flags', 'plugin', 'gfd', 'migStrategy', 'sharing',
            'mps', 'timeSlicing', 'resources', 'name', 'replicas', 'devices',
            'gpus', 'pattern', 'imex', 'channelIDs', 'sleepInterval',
            'deviceListStrategy')), inner, max_size=4), max_leaves=12))
    @hypothesis.settings(max_examples=scope.examples(150))
    def test_no_value_is_taken_for_anything_else(self, value):
        try:
            plugin.parse_config(yaml.safe_dump(value), 'x.yaml')
        except exception.DocumentError as error:
            self.assertIn('x.yaml: ', str(error))
