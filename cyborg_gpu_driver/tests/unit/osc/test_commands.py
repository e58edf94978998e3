# SPDX-License-Identifier: Apache-2.0

"""The commands' arguments, questions and output."""

import argparse
import contextlib
import io
import json
import os
import types

import fixtures
from openstack import connection as sdk
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.osc import base as osc_base
from cyborg_gpu_driver.osc import cordons
from cyborg_gpu_driver.osc import defragment
from cyborg_gpu_driver.osc import plugin
from cyborg_gpu_driver.osc import profile
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.osc import running

_FOUND = {'/': services.PLACEMENT,
          '/resource_providers': {'resource_providers': []}}


class PluginTest(base.BaseTestCase):

    def test_a_cloud_is_named(self):
        for config, name, region in (
                ({'name': 'here', 'auth': {}, 'region_name': 'one'},
                 'here', 'one'),
                ({'name': '', 'auth': {'auth_url': 'http://there/v3'},
                  'region_name': ''}, 'http://there/v3', None)):
            made = plugin.make_client(types.SimpleNamespace(
                sdk_connection=types.SimpleNamespace(
                    config=types.SimpleNamespace(**config))))
            self.assertEqual((name, region), (made.name, made.region))

    def test_the_option_of_each_plugin(self):
        parser = plugin.build_option_parser(argparse.ArgumentParser())
        parsed = parser.parse_args(['--os-gpu-api-version', '1'])
        self.assertEqual('1', getattr(parsed, plugin.API_VERSION_OPTION))


class CordonTest(base.BaseTestCase):

    def test_all_gpus_of_a_host_only_if_they_are_asked_for(self):
        for command, options in ((cordons.CordonGpu, ('--reason', 'a fan')),
                                 (cordons.DrainGpu, ('--reason', 'a fan')),
                                 (cordons.UncordonGpu, ())):
            parser = command(None, None).get_parser('openstack gpu')
            for which, gpu in ((['--all'], None), (['0000:07:00.0'],) * 2):
                self.assertEqual(gpu and gpu[0], parser.parse_args(
                    ['gpu1', *which, *options]).gpu)
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                self.assertRaises(SystemExit, parser.parse_args,
                                  ['gpu1', *options])
            self.assertIn('GPU --all is required', errors.getvalue())


class ProgressTest(base.BaseTestCase):

    def shown(self, terminal):
        stream = io.StringIO()
        stream.isatty = lambda: terminal
        with fixtures.MonkeyPatch('sys.stderr', stream):
            osc_base.show_progress(1, 2)
            osc_base.show_progress(2, 2)
        return stream.getvalue()

    def test_people_alone_see_it(self):
        self.assertEqual('', self.shown(False))
        self.assertIn('1 of 2', self.shown(True))


class SyncTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.asked = []
        self.profiles = []
        self.openstack = running.Openstack(self.useFixture(
            services.Services({
                'accelerator': self.cyborg,
                'placement': services.documents(_FOUND)})).cloud)

    def cyborg(self, environ, start_response):
        """Answer as a Cyborg that can list and create device profiles."""
        path = environ['PATH_INFO']
        if environ['REQUEST_METHOD'] == 'POST':
            body = json.loads(environ['wsgi.input'].read(
                int(environ['CONTENT_LENGTH'])))
            self.asked.append(body)
            self.profiles += [dict(one, uuid='x') for one in body]
        return services.documents({
            '/v2/device_profiles': {'device_profiles': self.profiles}},
            services.CYBORG)(
                dict(environ, PATH_INFO=path), start_response)

    def write(self, text):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'file')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)
        return path

    def sync(self, *arguments, **kwargs):
        path = self.write('{version: v1, profiles: '
                          '[{name: slice, groups: [{gpu: 1g.10gb}]}]}')
        return self.openstack.run(profile.SyncProfile, path, *arguments,
                                  **kwargs)

    def test_a_person_is_asked(self):
        for answer in ('', 'n', 'no', '\n', 'maybe'):
            _, errors = self.sync(answer=answer, code=1)
            self.assertIn('create device profile slice (1x CUSTOM_NVIDIA',
                          errors)
            self.assertIn('Make these 1 changes? [y/N]', errors)
            self.assertIn('Nothing was changed', errors)
        self.assertEqual([], self.asked)
        self.sync(answer='y\n')
        self.assertEqual(1, len(self.asked))
        _, errors = self.sync()
        self.assertIn('There is nothing to do', errors)
        self.assertEqual(1, len(self.asked))

    def test_a_dry_run_changes_nothing(self):
        output, errors = self.sync('--dry-run')
        self.assertIn('planned', output)
        self.assertNotIn('[y/N]', errors)
        self.assertIn('Warning: device profile slice: no GPU offers', errors)
        self.assertEqual([], self.asked)

    def test_what_the_file_has_no_more_is_named(self):
        self.sync('--yes')
        _, errors = self.openstack.run(
            profile.SyncProfile, self.write('version: v1'), '--yes')
        self.assertIn('device profile slice is not in the file; --prune',
                      errors)

    def test_files_that_are_none(self):
        path = self.write('{')
        for name, error in (
                (path, exception.DocumentError),
                (path + '.yaml', exception.InvalidValue),
                (os.path.dirname(path), exception.InvalidValue)):
            self.assertIn(name, str(self.assertRaises(
                error, self.openstack.run, profile.SyncProfile, name)))
        self.assertIn('standard input', str(self.assertRaises(
            exception.DocumentError, self.openstack.run, profile.SyncProfile,
            '-', answer='{')))


class ListTest(base.BaseTestCase):

    def test_flavors_are_unknown_where_nova_does_not_say(self):
        answers = {'/v2/device_profiles': {'device_profiles': [
            {'uuid': 'x', 'name': 'slice', 'description': None,
             'groups': [{'resources:PGPU': '1'}]}]}}
        openstack = running.Openstack(self.useFixture(services.Services({
            'accelerator': services.documents(answers, services.CYBORG),
            'placement': services.documents(_FOUND)})).cloud)
        _, errors = openstack.run(profile.ListProfile)
        self.assertIn('The flavors are not known', errors)
        self.assertIn('device profile slice: no GPU offers PGPU', errors)


class ArgumentsTest(base.BaseTestCase):

    def run_with(self, *arguments):
        cloud = connection.Cloud(sdk.Connection(
            auth={'auth_url': 'http://nowhere'}), 'here')
        return running.Openstack(cloud).run(defragment.Defragment, *arguments)

    def test_a_plan_is_applied_for_one_profile(self):
        error = self.assertRaises(
            exception.InvalidValue, self.run_with, '--apply')
        self.assertIn('--profile', str(error))

    def test_more_moves_than_a_search_can_bear(self):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertRaises(SystemExit, self.run_with, '--plan', '--moves',
                              '4')
        self.assertIn('expected 0 to 3', said.getvalue())
