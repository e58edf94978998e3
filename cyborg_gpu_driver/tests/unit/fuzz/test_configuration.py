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


"""Whatever cyborg.conf has, this library's errors name it."""

import os

import hypothesis
from hypothesis import strategies
from oslo_config import cfg

from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.fuzz import base

_WORDS = strategies.one_of(
    strategies.text(max_size=8), strategies.sampled_from((
        '', 'a', 'b', 'a,a', 'a,b', 'mig', 'vgpu', 'off', 'passthrough',
        'true', 'maybe', '0', '-1', '1' * 5000, '1e3', 'nan', '[', '[a-',
        '0000:07:00.0', '0000:41:00.4', '../../x', 'GPU-', '1g.5gb',
        'nvidia-474', 'nvidia-231', 'nvidia-0', 'T4-2B', 'T4-2B:2',
        'T4-2B:0', 'x:y:z', ':', 'fixed-share', 'best-effort', 'VGPU',
        'CUSTOM_A', '$', '${', '$nowhere', '${gpu.policies}', '$gpu',
        '$gpu.policies', '${a.b.c}', '$$', '%(x)s', '"a', "'", '\\',
        'a\n b', '\n[gpu]\n')))
_VALUES = strategies.one_of(
    _WORDS, strategies.lists(_WORDS, max_size=3).map(','.join))
_OPTIONS = {'gpu': [opt.name for opt in gpu_conf.GPU_OPTS],
            'gpu_policy:a': [opt.name for opt in gpu_conf.POLICY_OPTS],
            'gpu_policy:b': [opt.name for opt in gpu_conf.POLICY_OPTS]}


@strategies.composite
def _files(draw, options, **right):
    """A configuration file whose valid lines are kept or changed.

    :param right: the valid lines by group, which most files have.
    """
    lines = []
    for group, names in options.items():
        chosen = {name: draw(_VALUES) for name in draw(strategies.lists(
            strategies.sampled_from(names), max_size=3))}
        if draw(strategies.integers(0, 3)):
            chosen = {**chosen, **right.get(group, {})}
        lines += [f'[{group}]', *(f'{name} = {value}'
                                  for name, value in chosen.items())]
    return '\n'.join(lines)


class ConfigurationTest(base.FuzzCase):

    def setUp(self):
        super().setUp()
        machine = simulator.Machine.load('mixed')
        self.addCleanup(machine.uninstall)
        self.host = reader.HostReader(
            platform.open_platform(machine)).snapshot()
        self.path = os.path.join(self.state_path, 'cyborg.conf')

    def put(self, data):
        with open(self.path, 'wb') as stream:
            stream.write(data)

    def read(self):
        """Return the settings, or None if oslo.config cannot read the file."""
        conf = cfg.ConfigOpts()
        try:
            conf([], project='cyborg', default_config_files=[self.path],
                 default_config_dirs=[])
        except (cfg.Error, UnicodeDecodeError):
            # Cyborg's agent ends before it loads the driver.
            return None
        return policies.read(conf)

    @base.examples(250)
    @hypothesis.given(_files(_OPTIONS, **{
        'gpu': {'policies': 'a,b'}, 'gpu_policy:a': {'mode': 'mig'},
        'gpu_policy:b': {'mode': 'vgpu', 'vgpu_types': 'T4-2B'}}))
    @hypothesis.example('[gpu]\npolicies = ${gpu.policies}\n')
    @hypothesis.example('[gpu]\npolicies = a\n[gpu_policy:a]\nmode = mig\n'
                        'profiles = $nowhere\n')
    def test_policies(self, text):
        self.put(text.encode('utf-8', 'replace'))
        settings = self.attempt(self.read)
        if settings is None:
            return
        for gpu in self.host.gpus:
            governs = settings.policy_for(gpu)
            if governs is not None:
                self.attempt(offers.offers, gpu, governs)

    @base.examples(100)
    @hypothesis.given(base.damaged(
        b'[gpu]\npolicies = a\n'
        b'[gpu_policy:a]\nmode = vgpu\nvgpu_types = T4-2B\n'))
    def test_any_bytes(self, data):
        self.put(data)
        self.attempt(self.read)
