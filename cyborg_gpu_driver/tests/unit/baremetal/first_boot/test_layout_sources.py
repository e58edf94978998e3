# SPDX-License-Identifier: Apache-2.0

"""Where layouts are found, and which are refused."""

import json
import os

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import layout_sources

_ITEM = {'devices': 'all', 'mig-enabled': True, 'mig-devices': {'1g.10gb': 2}}
_FILE = {'version': 'v1', 'mig-configs': {'pair': [_ITEM]}}


class SourcesCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.data = os.path.join(self.directory, 'instance-data.json')

    def metadata(self, content):
        """Search cloud-init's file with this content."""
        with open(self.data, 'w', encoding='utf-8') as stream:
            stream.write(content if isinstance(content, str)
                         else json.dumps(content))
        return layout_sources.search('', self.data)

    def property(self, value):
        """The layout found for a server with this value of the property."""
        return self.metadata({'ds': {'meta_data': {'uuid': 'u', 'meta': {
            'cyborg_gpu_layout': value, 'other': 'x'}}}})


class MetadataTest(SourcesCase):

    def test_none(self):
        for content in ({}, {'ds': None}, {'ds': {'meta_data': {}}},
                        {'ds': {'meta_data': {'meta': {'x': 'y'}}}}):
            self.assertIsNone(self.metadata(content))

    def test_a_name(self):
        found = self.property(' all-1g.10gb\n')
        self.assertEqual(('all-1g.10gb', f'{self.data}, cyborg_gpu_layout'),
                         (found.wanted, found.source))
        self.assertEqual('all-1g.10gb', found.layout)

    def test_a_name_that_yaml_takes_for_something_else(self):
        for name in ('off', '7', 'null', '1e3'):
            self.assertEqual(name, self.property(name).wanted)

    def test_inline(self):
        for value in ([_ITEM], json.dumps([_ITEM]),
                      '[{devices: all, mig-enabled: true, mig-devices: '
                      '{1g.10gb: 2}}]'):
            found = self.property(value)
            self.assertEqual(('inline', [_ITEM]), (
                found.layout,
                [item.to_dict() for item in found.wanted.sections]))

    def test_inline_with_its_name(self):
        for value in ({'pair': [_ITEM]}, _FILE, json.dumps(_FILE)):
            found = self.property(value)
            self.assertEqual('pair', found.layout)
            self.assertEqual(found.source, found.wanted.source)

    def test_another_document(self):
        for content, words in (
                ('{', 'top level: not JSON'), ('[' * 100000, 'not JSON'),
                ({'ds': {'meta_data': {'meta': 'x'}}},
                 "top level: found 'x'; expected an object")):
            error = self.assertRaises(
                exception.DocumentError, self.metadata, content)
            self.assertIn(words, str(error))

    def test_malformed(self):
        bad = dict(_ITEM, **{'mig-devises': {}})
        for value, words in (
                ('', 'found nothing; expected the name of a layout'),
                ('no such name', "found 'no such name'; expected the name"),
                ('{', 'not YAML'), ('[' * 60000, 'not YAML'),
                (True, 'found true'), (7.5, 'found 7.5'),
                ([bad], "unknown key 'mig-devises'"),
                ({'a': [_ITEM], 'b': [_ITEM]}, 'found keys a, b; expected'),
                (dict(_FILE, version='v2'),
                 "version: found 'v2'; expected v1"),
                ('{a: [{devices: all, devices: all}]}', 'appears twice')):
            error = self.assertRaises(exception.DocumentError, self.property,
                                      value)
            self.assertIn(words, str(error))
            self.assertIn(f'{self.data}, cyborg_gpu_layout:', str(error))


class FileTest(SourcesCase):

    def setUp(self):
        super().setUp()
        self.path = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'layout.yaml')

    def found(self, content):
        if content is not None:
            with open(self.path, 'wb') as stream:
                stream.write(content)
        return layout_sources.search(self.path, '')

    def test_malformed(self):
        two = dict(_FILE, **{'mig-configs': {'a': [_ITEM], 'b': [_ITEM]}})
        for content, words in (
                (b'', 'found nothing; expected a mapping with keys version'),
                (b'all-1g.10gb', "found 'all-1g.10gb'; expected a mapping"),
                (json.dumps(two).encode(), 'the file has several entries; '
                 'choose one')):
            error = self.assertRaises(exception.DocumentError, self.found,
                                      content)
            self.assertIn(f'{self.path}: ', str(error))
            self.assertIn(words, str(error))

    def test_unreadable(self):
        for content, words in ((b'\xff', 'is not UTF-8'),
                               (b' ' * (layout_sources.LIMIT + 1),
                                'is longer than')):
            error = self.assertRaises(exception.CloudError,
                                      self.found, content)
            self.assertIn(f'{self.path}: {words}', str(error))

    def test_no_file_stands_there(self):
        os.mkfifo(self.path)
        for _ in range(2):
            error = self.assertRaises(exception.CloudError, self.found, None)
            self.assertIn('Not a regular file', str(error))
            os.unlink(self.path)
            os.symlink('/', self.path)
