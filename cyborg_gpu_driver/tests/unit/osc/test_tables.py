# SPDX-License-Identifier: Apache-2.0

"""The output of ``openstack gpu``: tables, flat formats and JSON."""

import configparser
import csv
import importlib
import io
import json
import os
import pathlib

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import output as cmd_output
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.nova import prometheus
from cyborg_gpu_driver.tests.unit.osc import running
from cyborg_gpu_driver.tests.unit.osc import test_explain

_SETUP = pathlib.Path(__file__).resolve().parents[4] / 'setup.cfg'
_SERVER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a13'
_GONE = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a14'
_REQUEST = {
    'uuid': '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a15', 'state': 'Bound',
    'device_profile_name': 'gpus', 'hostname': 'compute1',
    'device_rp_uuid': '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a12',
    'instance_uuid': _GONE, 'attach_handle_type': 'MDEV',
    'attach_handle_uuid': '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a16',
    'attach_handle_info': {'domain': '0000', 'bus': '07', 'device': '00',
                           'function': '4'}}


def _commands():
    """Every command by its name after "openstack gpu"."""
    parser = configparser.ConfigParser()
    parser.read(_SETUP)
    for line in parser['entry_points']['openstack.gpu.v1'].split('\n'):
        if line:
            name, _, target = line.partition(' = ')
            module, _, attribute = target.partition(':')
            yield (name.removeprefix('gpu_').replace('_', ' '),
                   getattr(importlib.import_module(module), attribute))


class AnswerCase(base.BaseTestCase):
    """A cloud with one GPU, and the arguments of each command."""

    def setUp(self):
        super().setUp()
        for name, value in (('COLUMNS', '200'), ('CLIFF_FIT_WIDTH', None),
                            ('CLIFF_MAX_TERM_WIDTH', None)):
            self.useFixture(fixtures.EnvironmentVariable(name, value))
        self.path = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'gpus.yaml')
        with open(self.path, 'w', encoding='utf-8') as stream:
            json.dump({'version': 'v1', 'profiles': [{
                'name': 'slice', 'groups': [{
                    'gpu': '1g.10gb', 'required': [
                        'CUSTOM_GPU_MODEL_A100_SXM4_80GB']}]}]}, stream)
        self.world = test_explain.World()
        self.world.requests = [_REQUEST]
        self.world.inventory['reserved'] = 4
        self.world.traits = [
            'OWNER_CYBORG', 'CUSTOM_GPU_KIND_MIG', 'CUSTOM_GPU_NUMA_1',
            'CUSTOM_GPU_MODEL_A100_SXM4_80GB', 'CUSTOM_GPU_MEMORY_10GB',
            'CUSTOM_GPU_UNHEALTHY_ECC']
        self.world.registered = [
            {'id': 'limit', 'region_id': 'one', 'default_limit': 4,
             'resource_name': 'class:CUSTOM_NVIDIA_1G_10GB',
             'description': None}]
        self.world.usages = {'CUSTOM_NVIDIA_1G_10GB': 3, 'VCPU': 8}
        self.commands = dict(_commands())
        hours = self.useFixture(prometheus.Prometheus())
        hours.content = json.dumps({'status': 'success', 'data': {
            'resultType': 'vector', 'result': [{
                'metric': {'Hostname': 'compute1', 'profile': '1g.10gb'},
                'value': [1793491200.0, '3600']}]}}).encode()
        self.arguments = {
            'defragment': ('--plan',),
            'explain': ('--flavor', 'small'),
            'flavor list': (), 'list': (),
            'show': ('compute1', '0000:07:00.0'),
            'orphan clean': ('--dry-run',),
            'profile list': (), 'profile sync': (self.path, '--dry-run'),
            'quota show': (),
            'server show': (_SERVER,),
            'usage': ('--prometheus-url', hours.url)}
        self.codes = {'explain': 0, 'defragment': 3, 'orphan clean': 1}

    def openstack(self):
        return running.Openstack(self.useFixture(services.Services(
            self.world.applications())).cloud)

    def run_all(self, *options):
        """The output of each command by its name."""
        openstack = self.openstack()
        return {name: openstack.run(
            self.commands[name], *arguments, *options,
            code=self.codes.get(name, 0))[0]
            for name, arguments in self.arguments.items()}


class TableTest(AnswerCase):

    def test_a_table_fits_a_terminal(self):
        for name, output in self.run_all().items():
            self.assertIn('+-', output, name)
            self.assertEqual([], [line for line in output.splitlines()
                                  if len(line) > cmd_output.WIDTH], name)

    def test_long_shows_what_the_default_leaves_out(self):
        for name in ('explain', 'list', 'orphan clean', 'profile list',
                     'server show'):
            self.arguments[name] += ('--long',)
        found = self.run_all()
        for name, column in (
                ('explain', 'Profile'), ('list', 'NUMA Node'),
                ('orphan clean', 'Where'), ('profile list', 'Resource Class'),
                ('server show', 'Handle')):
            self.assertIn(f' {column} ', found[name], name)
            self.assertEqual(1, len({len(line) for line
                                     in found[name].splitlines()
                                     if line[0] in '+|'}), name)


class TenantTest(AnswerCase):
    """A user without the role admin, to whom Placement tells only usages."""

    def setUp(self):
        super().setUp()
        applications = self.world.applications()
        self.refused = []

        def refusing(application, *paths):
            def answer(environ, start_response):
                if (any(map(environ['PATH_INFO'].startswith, paths))
                        or 'all_tenants' in environ['QUERY_STRING']):
                    self.refused.append(environ['PATH_INFO'])
                    start_response('403 Forbidden', [])
                    return [b'']
                return application(environ, start_response)
            return answer

        for kind, paths in (
                ('placement', ('/resource_providers', '/allocation_cand')),
                ('compute', ('/v2.1/os-',)), ('identity', ('/v3/projects',))):
            applications[kind] = refusing(applications[kind], *paths)
        self.user = running.Openstack(self.useFixture(services.Services(
            applications, ('member', 'reader'))).cloud)

    def test_what_tenants_may_see(self):
        (row,) = self.user.rows(self.commands['server show'], 'trainer')
        self.assertEqual(('Bound', 'gpus', None), tuple(
            row[key] for key in ('State', 'Device Profile', 'Profile')))
        for arguments in (), ('own',):
            (row,) = self.user.rows(self.commands['quota show'], *arguments)
            self.assertEqual(('own', 4, 3), tuple(
                row[key] for key in ('Project', 'Limit', 'Used')))
        (row,) = self.user.rows(self.commands['flavor list'])
        self.assertEqual('small', row['Name'])
        self.assertEqual([], self.refused)

    def test_the_rest_is_for_administrators(self):
        for name in ('flavor list', 'server show', 'quota show'):
            del self.arguments[name]
        self.arguments['quota show'] = ('another',)
        for name, arguments in self.arguments.items():
            error = str(self.assertRaises(
                exception.CloudError, self.user.run, self.commands[name],
                *arguments))
            self.assertIn('role admin', error, name)
            self.assertNotIn('http', error, name)


class FlatTest(AnswerCase):
    """Formats for scripts contain no value in Python's notation."""

    def assert_plain(self, name, text):
        for repr_ in ('None', "['", "{'", '["'):
            self.assertNotIn(repr_, text, name)

    def lists(self):
        return [name for name in self.arguments
                if name not in ('explain', 'show')]

    def test_csv(self):
        for name in ('explain', 'show'):
            del self.arguments[name]
        for name, output in self.run_all('-f', 'csv').items():
            heads, *rows = csv.reader(io.StringIO(output))
            self.assert_plain(name, output)
            self.assertEqual({len(heads)}, {len(row) for row in rows})

    def test_shell(self):
        for name in self.lists():
            del self.arguments[name]
        found = self.run_all('-f', 'shell')
        self.assertIn('disabled_reason=""\n', found['show'])
        self.assertIn('usable="True"\n', found['show'])
        for name, output in found.items():
            self.assertNotIn('None', output, name)

    def test_json_has_types(self):
        found = {name: json.loads(output) for name, output
                 in self.run_all('-f', 'json').items()}
        (row,) = found['server show']
        self.assertEqual((1, '0000:07:00.4'),
                         (row['NUMA Node'], row['Function']))
        self.assertEqual(
            [(None, 4, None, None), ('physics', 4, 3, 1)],
            [(row['Project'], row['Limit'], row['Used'], row['Free'])
             for row in found['quota show']])
        (row,) = found['profile list']
        self.assertEqual((1, ['gpus'], ['small']), tuple(
            row[key] for key in ('GPUs', 'Device Profiles', 'Flavors')))
        (row,) = found['list']
        self.assertIs(True, row['Usable'])
        self.assertEqual(['ECC'], row['Problems'])
        self.assertIsNone(found['show']['disabled_reason'])
        self.assertEqual(1, found['show']['numa_node'])
        (row,) = found['flavor list']
        self.assertEqual(('small', 'device profile gpus'),
                         (row['Name'], row['GPUs']))
