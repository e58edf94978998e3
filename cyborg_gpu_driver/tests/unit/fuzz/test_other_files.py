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


"""Files of hooks, nova.conf, documents of other hosts, names of things."""

import json
import os

import hypothesis
import yaml
from hypothesis import strategies

from cyborg_gpu_driver.check import placement
from cyborg_gpu_driver.cmd.layout import hooks
from cyborg_gpu_driver.nova import conf_file
from cyborg_gpu_driver.tests.unit.fuzz import base
from cyborg_gpu_driver.tests.unit.fuzz import checks
from cyborg_gpu_driver.tests.unit.fuzz import oddities

_HOOKS = {'version': 'v1', 'hooks': {
    'apply-start': [{'workdir': '/tmp', 'command': '/bin/true',
                     'args': ['a', 'b'], 'envs': {'LANG': 'C'}}],
    'apply-exit': [{'command': '/bin/true'}]}}
_SPEC = {'vendor_id': '10de', 'product_id': '20b0', 'address':
         '0000:07:00.*', 'traits': 'CUSTOM_A,CUSTOM_B', 'managed': 'no'}
_VALUES = strategies.one_of(
    base.mutated(_SPEC).map(json.dumps), base.mutated([_SPEC]).map(
        json.dumps), base.mutated({**_SPEC, 'address': {
            'domain': '.*', 'bus': '07', 'slot': '00', 'function': '[0-3]'
        }}).map(json.dumps), base.TEXTS, strategies.sampled_from((
            '[' * 5000, '$pci.device_spec', '$nowhere', '${a.b.c}', '$$',
            '{"address": {"bus": "a{99999999999}"}}', '{"address": "' +
            '(' * 500 + '"}', '{"address": {"bus": "' + '(' * 500 + '"}}',
            '{"vendor_id": "' + '1' * 5000 + '"}', '%(x)s', 'a\n b')))
_PEER = placement.Peer('gpu2', '580.65.06', (placement.Gpu(
    '0000:16:00.0', 'NVIDIA L40S', ('L40S-12Q',), False, False, True, True,
    '26B9185100000003'),))


class SchedulingTest(base.FuzzCase):
    """What nova-scheduler reads, and the sources of its figures."""

    @base.examples(150)
    @hypothesis.given(base.mutated({'slowdown': {
        'a': {'a': 1.5, 'b': 1}, 'b': {'a': 2, 'c': None}}}))
    def test_slowdowns(self, document):
        checks.slowdowns(document)

    @base.examples(150)
    @hypothesis.given(base.mutated({'status': 'success', 'data': {
        'resultType': 'vector', 'result': [{
            'metric': {'Hostname': 'compute1', 'address': '0000:07:00.0'},
            'value': [1790000000.5, '0.5']}]}}))
    def test_utilization(self, document):
        checks.utilization_of_gpus(document)

    @base.examples(150)
    @hypothesis.given(strategies.lists(strategies.builds(
        '\n@gpu-interference c0ffee {} {} {} {} {} {} @\n'.format,
        strategies.sampled_from(('run', 'begin', 'end', 'run 1')),
        *[strategies.integers(-1, 10 ** 12)] * 4, base.TEXTS)))
    def test_console_of_a_guest(self, lines):
        checks.console(''.join(lines))

    @base.examples(150)
    @hypothesis.given(strategies.dictionaries(
        strategies.one_of(
            strategies.sampled_from((
                'gpu:placement', 'gpu:application',
                'gpu:prefer:CUSTOM_X', 'gpu:prefer:x')),
            base.TEXTS.map('gpu:prefer:{}'.format)),
        strategies.one_of(base.TEXTS, strategies.floats(),
                          strategies.integers())))
    def test_extra_specs(self, specs):
        checks.extra_specs(specs)


class HooksTest(base.FuzzCase):

    @base.examples(150)
    @hypothesis.given(oddities.texts(_HOOKS))
    @hypothesis.example('version: !!int ""')
    @hypothesis.example('!!timestamp x')
    def test_parse(self, text):
        checks.hooks_file(text)

    def test_each_oddity_of_yaml(self):
        text = yaml.safe_dump(_HOOKS, default_flow_style=True)
        for scalar in oddities.SCALARS:
            for word in ('v1', 'apply-start', 'LANG', '/bin/true', 'a'):
                checks.hooks_file(text.replace(word, scalar, 1))
            checks.hooks_file(scalar)

    @base.examples(60)
    @hypothesis.given(strategies.lists(base.TEXTS, max_size=2),
                      strategies.dictionaries(base.TEXTS, base.TEXTS,
                                              max_size=2), base.TEXTS)
    @hypothesis.example(['a\0b'], {}, '')
    @hypothesis.example([], {'a=b': 'c'}, '')
    @hypothesis.example([], {}, '\ud800')
    def test_run(self, args, envs, workdir):
        """An error names what a program cannot be given."""
        hook = hooks.Hook('/bin/true', tuple(args), envs, workdir or None)
        self.attempt(hooks.Hooks('file', {hooks.START: (hook,)}, {},
                                 lambda text: None).run, hooks.START)


class NovaTest(base.FuzzCase):

    def read(self, data):
        path = os.path.join(self.state_path, 'nova.conf')
        with open(path, 'wb') as stream:
            stream.write(data)
        found = self.attempt(conf_file.read, [path])
        for spec in found.device_spec if found else ():
            self.assertIsInstance(spec.managed, bool)
            self.assertIsInstance(spec.traits, frozenset)

    @base.examples(200)
    @hypothesis.given(strategies.lists(_VALUES, min_size=1, max_size=2))
    @hypothesis.example(['{"address": {"bus": "a{99999999999}"}}'])
    @hypothesis.example(['[' * 5000])
    @hypothesis.example(['$pci.device_spec'])
    def test_device_spec(self, values):
        self.read('\n'.join(['[pci]', *(
            f'device_spec = {value}' for value in values)]).encode(
                'utf-8', 'replace'))

    @base.examples(60)
    @hypothesis.given(base.TEXTS, base.TEXTS)
    @hypothesis.example('$devices.enabled_mdev_types', 'maybe')
    def test_other_options(self, types, flag):
        self.read(f'[devices]\nenabled_mdev_types = {types}\n[pci]\n'
                  f'report_in_placement = {flag}\n'.encode(
                      'utf-8', 'replace'))

    @base.examples(60)
    @hypothesis.given(base.damaged(b'[pci]\ndevice_spec = {"vendor_id": '
                                   b'"10de"}\n'))
    def test_any_bytes(self, data):
        self.read(data)


class PeerTest(base.FuzzCase):

    @base.examples(100)
    @hypothesis.given(base.mutated(json.loads(_PEER.dump())), base.damaged(
        _PEER.dump().encode()))
    @hypothesis.example(json.loads(_PEER.dump()), b'[' * 100000)
    def test_read(self, content, data):
        path = os.path.join(self.state_path, 'peer.json')
        for written in (json.dumps(content).encode(), data):
            with open(path, 'wb') as stream:
                stream.write(written)
            found = self.attempt(placement.read_peers, path)
            if found is not None:
                self.assertEqual(json.loads(written),
                                 json.loads(found.dump()))
                self.assertTrue(found.host.isprintable())


class NamesTest(base.FuzzCase):

    @base.examples(300)
    @hypothesis.given(strategies.one_of(base.TEXTS, strategies.text(
        alphabet='0123456789abcdefgABCQ.:-+_')))
    def test_words(self, text):
        checks.words(text)

    @base.examples(150)
    @hypothesis.given(strategies.one_of(
        strategies.binary(max_size=40),
        base.TEXTS.map(lambda text: text.encode('utf-8', 'replace'))))
    def test_a_kernel_that_says_the_same_everywhere(self, data):
        checks.tree(data)
