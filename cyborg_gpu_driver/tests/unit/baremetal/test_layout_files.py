# SPDX-License-Identifier: Apache-2.0

"""The layout files of the configuration."""

import pathlib

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import layout_files
from cyborg_gpu_driver.conf import baremetal

TEXT = ('version: v1\nmig-configs:\n  {}:\n  - {{devices: all, mig-enabled: '
        'false}}\n')


class LayoutFilesTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = cfg.ConfigOpts()
        self.conf([], default_config_files=[], default_config_dirs=[])
        baremetal.register_opts(self.conf)
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)

    def files(self, **contents):
        for name, content in contents.items():
            (self.directory / name).write_bytes(content)
        self.conf.set_override(
            'layout_files', [str(self.directory / name)
                             for name in contents], 'gpu_baremetal')

    def test_in_order(self):
        self.files(b=TEXT.format('one').encode(),
                   a=TEXT.format('two').encode())
        self.assertEqual([('one',), ('two',)], [
            file.names for file in layout_files.read(self.conf)])

    def test_what_cannot_be_read(self):
        for content, error, words in (
                (None, exception.InvalidConfiguration,
                 ('[gpu_baremetal] layout_files = ', 'No such file')),
                (b'\xff\xfe', exception.InvalidConfiguration,
                 ('layout_files = ',)),
                (b'version: v1\nmig-configs: {}\n', exception.DocumentError,
                 ('at least one entry',))):
            self.files(a=content or b'')
            if content is None:
                (self.directory / 'a').unlink()
            message = str(self.assertRaises(error, layout_files.read,
                                            self.conf))
            for word in (*words, str(self.directory / 'a')):
                self.assertIn(word, message)
