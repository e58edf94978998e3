# SPDX-License-Identifier: Apache-2.0


"""What the readers of files, documents and names make of any input.

Each row of :data:`ROWS` is a reader of ``checks``, how many examples it gets
in ``tools/test all``, and the strategies of its arguments.
"""

import dataclasses
import json
import math
import os
import uuid

import hypothesis
from hypothesis import strategies

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import conf_file
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import capacity
from cyborg_gpu_driver.report import withdrawal
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.fuzz import base
from cyborg_gpu_driver.tests.unit.fuzz import checks
from cyborg_gpu_driver.tests.unit.report import placements

_GPU = str(checks.ADDRESS)
_MIG = {'version': 'v1', 'mig-configs': {
    'one': [{'devices': 'all', 'device-filter': ['0x20B010DE'],
             'mig-enabled': True,
             'mig-devices': {'1g.5gb': 2, '1c.3g.20gb': 1}},
            {'devices': [0, 2], 'device-filter': '0x25B610DE',
             'mig-enabled': False}],
    'two': [{'devices': [0], 'mig-enabled': True, 'mig-devices': {}}]}}
_ITEMS = [{'devices': 'all', 'device-filter': '0x233010DE',
           'mig-enabled': True, 'mig-devices': {'1g.10gb': 2}},
          {'devices': [0], 'device-filter': '0x20B010DE',
           'mig-enabled': False}]
_META = {'ds': {'meta_data': {
    'uuid': 'a', 'meta': {'cyborg_gpu_layout': 'all-1g.10gb'}}}}
_SPEC = {'vendor_id': '10de', 'product_id': '20b0', 'address':
         '0000:07:00.*', 'traits': 'CUSTOM_A,CUSTOM_B', 'managed': 'no'}
_DEVICE_SPECS = strategies.one_of(
    base.mutated(_SPEC).map(json.dumps), base.mutated([_SPEC]).map(
        json.dumps), base.mutated({**_SPEC, 'address': {
            'domain': '.*', 'bus': '07', 'slot': '00', 'function': '[0-3]'
        }}).map(json.dumps), base.TEXTS, strategies.sampled_from((
            '[' * 5000, '$pci.device_spec', '$nowhere', '${a.b.c}', '$$',
            '{"address": {"bus": "a{99999999999}"}}', '{"address": "' +
            '(' * 500 + '"}', '{"address": {"bus": "' + '(' * 500 + '"}}',
            '{"vendor_id": "' + '1' * 5000 + '"}', '%(x)s', 'a\n b')))
_PLACE = {'start': 4, 'size': 2}
_CLAIMS = [{
    'handle': str(uuid.UUID(int=number)), 'gpu': _GPU,
    'function': '0000:07:00.4', 'mdev_type': 'nvidia-474',
    'profile': '1g.5gb', 'phase': phase.value, 'profile_id': 19,
    'placement': dict(_PLACE), 'instance_id': 7, 'vfio': bool(number % 2),
    'vgpu_placement': None, 'boot': 'one', 'repeats': 0}
    for number, phase in enumerate(gpu_record.Phase)]
_LAYOUT = {'enabled': True, 'pending': False, 'instances': [
    {'profile_id': 19, 'placement': _PLACE, 'compute': [[0, 1], [1, 1]]}]}
_RECORD = {
    'claims': _CLAIMS, 'claims_lost': False,
    'fixed': {'types': {'0000:07:00.4': 'nvidia-1145'}, 'instances': [
        {'profile_id': 19, 'placement': _PLACE, 'compute': [[0, 1]]}]},
    'layout': {'gpu': _GPU, 'device_id': '20b0', 'vfs': True,
               'layout': _LAYOUT},
    'change': {'gpu': _GPU, 'before': {'enabled': True, 'pending': True},
               'steps': ['a', 'b'], 'at': 1, 'touched': [
                   {'profile_id': 19, 'placement': _PLACE}],
               'problem': None},
    'board': {'ids': ['10de', '20b0', None, None], 'boot': 'one',
              'time': 1.5, 'nvlink_peers': ['0000:0f:00.0'],
              'health': {'state': 'ok', 'reasons': ['a'], 'time': 1.0}},
    'health': {'boot': 'one', 'uuid': 'GPU-1', 'conditions': [
        {'code': 'XID_79', 'first': 1.0, 'last': 2.5, 'count': 1,
         'clean': 0, 'placement': _PLACE, 'instance_id': 7}]},
    'tenancy': {'state': 'used', 'tenants': ['one'], 'generation': 7,
                'reason': ''},
    'cordons': [{'source': 'cyborg', 'since': 1.0, 'who': 'ann',
                 'reason': 'a fan'}]}
_BOARD = model.Gpu(
    address=checks.ADDRESS, vendor_id='10de', device_id='20b2',
    class_code='0302', model='NVIDIA A100-SXM4-80GB', uuid='GPU-1',
    memory_mib=81920, driver='nvidia', visible_to_nvml=True)
_HIDDEN = dataclasses.replace(_BOARD, model=None, uuid=None, memory_mib=None)
_REPORTED = {
    'device_id': '20b2', 'mode': 'mig',
    'facts': {'model': 'A100', 'uuid': 'GPU-1', 'memory_mib': 81920},
    'providers': {names.provider_uuid(f'host_gpu_{_GPU}_1g.20gb'): {
        'gpu': _GPU, 'policy': '', 'mode': 'mig', 'profile': '1g.20gb',
        'total': 2, 'vgpu_type_id': 'nvidia-1', 'parents': [_GPU]}}}


def _put(test, name, data):
    """Write a file of a test; return its path."""
    path = os.path.join(test.state_path, name)
    with open(path, 'wb') as stream:
        stream.write(data)
    return path


def _layout(test, text):
    checks.layouts(text, test.gpus)


def _metadata(test, content):
    checks.metadata(json.dumps(content), test.gpus)


def _layout_in_metadata(test, text):
    checks.metadata(json.dumps({'ds': {'meta_data': {'meta': {
        'cyborg_gpu_layout': text}}}}), test.gpus)


def _nova(test, data):
    found = checks.attempt(conf_file.read, [_put(test, 'nova.conf', data)])
    for spec in found.device_spec if found else ():
        test.assertIsInstance(spec.managed, bool)


def _device_specs(test, values):
    _nova(test, '\n'.join(['[pci]', *(
        f'device_spec = {value}' for value in values)]).encode(
            'utf-8', 'replace'))


def _damaged_files(test, data):
    path = store.Store(test.state_path).path(checks.ADDRESS)
    durable.make_directory(os.path.dirname(path))
    _put(test, path, data)
    test.assertRaises(exception.JournalError,
                      store.Store(test.state_path).read, checks.ADDRESS)


def _reported(test, content):
    """Read what a GPU that is not there any more has offered."""
    path = store.Store(test.state_path).path(checks.ADDRESS)
    durable.write(path, store.KIND, store.VERSION, {'reported': content})
    test.assertIsInstance(
        capacity.of_reports(test.state_path, checks.ADDRESS), str)
    # Without Placement, everything counts as in use.
    for used in (set(), None):
        found = withdrawal.Withdrawal(
            test.state_path, placements.Placement(used).providers(),
            lambda gpu, offered: build.device(gpu, offered, 'host'), 'host')
        found.held()
        for gpus in ((_HIDDEN,), (), (_BOARD,)):
            for inventory in found.decide(
                    model.Host(gpus=gpus), _offers, (), (),
                    (checks.ADDRESS,)).draining:
                test.assertIs(int, type(inventory.total))


def _offers(gpu):
    return [offers.Offer(
        gpu.address, 'p', policy.Mode.MIG, '1g.10gb', 2,
        vgpu_type_id='nvidia-1',
        parents=(model.PciAddress.parse('0000:07:00.4'),))]


def _record(test, content):
    durable.write(f'{test.state_path}/gpus/{_GPU}.json', store.KIND,
                  store.VERSION, content)
    checks.record_file(test.state_path)


def _plain(check):
    return lambda test, *values: check(*values)


ROWS = {
    'layout file': (150, _layout, (base.yaml_texts(_MIG),)),
    'layout file of any bytes': (100, _layout, (base.damaged(
        json.dumps(_MIG).encode()).map(
            lambda data: data.decode('utf-8', 'replace')),)),
    'metadata': (150, _metadata, (base.mutated(_META),)),
    'layout in metadata': (150, _layout_in_metadata, (
        base.yaml_texts({'one': _ITEMS}),)),
    'metadata of any text': (50, _plain(checks.metadata), (base.TEXTS,)),
    'slowdowns': (150, _plain(checks.slowdowns), (base.mutated({'slowdown': {
        'a': {'a': 1.5, 'b': 1}, 'b': {'a': 2, 'c': None}}}),)),
    'utilization': (150, _plain(checks.utilization_of_gpus), (base.mutated({
        'status': 'success', 'data': {'resultType': 'vector', 'result': [{
            'metric': {'Hostname': 'compute1', 'address': _GPU},
            'value': [1790000000.5, '0.5']}]}}),)),
    'console of a guest': (150, _plain(checks.console), (strategies.lists(
        strategies.builds(
            '\n@gpu-interference c0ffee {} {} {} {} {} {} @\n'.format,
            strategies.sampled_from(('run', 'begin', 'end', 'run 1')),
            *[strategies.integers(-1, 10 ** 12)] * 4, base.TEXTS)).map(
                ''.join),)),
    'extra specs': (150, _plain(checks.extra_specs), (strategies.dictionaries(
        strategies.one_of(strategies.sampled_from((
            'gpu:strategy', 'gpu:application')), base.TEXTS),
        strategies.one_of(base.TEXTS, strategies.floats(),
                          strategies.integers())),)),
    'device_spec': (200, _device_specs, (strategies.lists(
        _DEVICE_SPECS, min_size=1, max_size=2),)),
    'nova.conf': (60, _nova, (base.damaged(
        b'[pci]\nreport_in_placement = true\ndevice_spec = {"vendor_id": '
        b'"10de"}\n[devices]\nenabled_mdev_types = nvidia-1\n'),)),
    'words': (300, _plain(checks.words), (strategies.one_of(
        base.TEXTS, strategies.text(
            alphabet='0123456789abcdefgABCQ.:-+_')),)),
    'a kernel that says the same everywhere': (150, _plain(checks.tree), (
        strategies.one_of(strategies.binary(max_size=40), base.TEXTS.map(
            lambda text: text.encode('utf-8', 'replace'))),)),
    'record': (400, _record, (base.mutated(_RECORD),)),
    'reported': (250, _reported, (base.mutated(_REPORTED),)),
    'damaged files': (100, _damaged_files, (
        base.damaged(json.dumps(_CLAIMS).encode()),)),
}

EXAMPLES = (
    ('layout file', '{version: v1, mig-configs: {a: [{devices: all, '
                    'mig-enabled: 1, mig-devices: {}}]}}'),
    ('layout in metadata', '[' * 5000), ('layout in metadata', '!!binary x'),
    ('layout file', 'version: !!int ""'), ('layout file', '!!timestamp x'),
    ('device_spec', ['{"address": {"bus": "a{99999999999}"}}']),
    ('device_spec', ['[' * 5000]), ('device_spec', ['$pci.device_spec']),
    ('nova.conf', b'[devices]\nenabled_mdev_types = '
                  b'$devices.enabled_mdev_types\n[pci]\n'
                  b'report_in_placement = maybe\n'),
    ('record', {'change': {**_RECORD['change'], 'at': math.inf}}),
    ('record', {'health': {'conditions': [
        {'code': 'XID_79', 'first': 10 ** 400, 'last': math.nan}]}}),
    ('record', {'tenancy': {'state': 'used', 'generation': True}}),
    ('damaged files', b'[' * 100000),
)
"""Inputs that once broke a reader, or that chance seldom finds."""


class ReaderTest(base.FuzzCase):

    def setUp(self):
        super().setUp()
        machine = simulator.Machine.load('mixed')
        self.gpus = reader.HostReader(
            platform.open_platform(machine)).snapshot().gpus
        self.addCleanup(machine.uninstall)

    def test_drawn_inputs(self):
        for name, (number, check, arguments) in ROWS.items():
            with self.subTest(name):
                self.draw(number, check, strategies.tuples(*arguments))

    def draw(self, number, check, arguments):
        @base.examples(number)
        @hypothesis.given(arguments)
        def attempt(values):
            check(self, *values)

        attempt()

    def test_inputs_that_broke_a_reader(self):
        for name, *values in EXAMPLES:
            with self.subTest(name):
                ROWS[name][1](self, *values)

    def test_each_oddity_of_yaml(self):
        for text in base.odd_texts(
                _MIG, 'v1', 'all', 'true', '2', 'one', '1g.5gb', '{}'):
            checks.attempt(layout_file.LayoutFile.parse, text, 'file')
        for text in base.odd_texts(_ITEMS, 'all', 'true', '2', '1g.10gb'):
            checks.metadata(json.dumps({'ds': {'meta_data': {'meta': {
                'cyborg_gpu_layout': text}}}}))

    def test_what_is_too_much(self):
        """A short text can mean more than any program can process."""
        head = ('version: v1\nmig-configs:\n  a:\n  - devices: all\n'
                '    mig-enabled: true\n    mig-devices: ')
        laughs = 'l0: &a [l, l, l, l, l, l, l, l, l]\n' + ''.join(
            f'l{number}: &{chr(97 + number)} ['
            + ', '.join([f'*{chr(96 + number)}'] * 9) + ']\n'
            for number in range(1, 10))
        for text in (
                *(head + devices for devices in (
                    '{1g.5gb: 1000000000}', '{1g.5gb: ' + '9' * 5000 + '}',
                    '{1c.7g.40gb: 7, 2c.7g.40gb: 1, 3c.7g.40gb: 1}',
                    '{1c.3g.20gb: 3, 1c.4g.20gb: 4, 2c.3g.20gb: 1}',
                    '{1c.2g.10gb: 6, 2c.3g.20gb: 1, 1c.3g.20gb: 1}')),
                laughs + 'version: v1\nmig-configs: *j\n',
                laughs + 'version: v1\nmig-configs: {a: *j}\n',
                'version: v1\nmig-configs: ' + '[' * 1000 + ']' * 1000,
                'version: v1\nmig-configs: ' + '{a: ' * 1000
                + '1' + '}' * 1000,
                head.replace('all', str([*range(1000)])) + '{}'):
            checks.layouts(text, self.gpus)
