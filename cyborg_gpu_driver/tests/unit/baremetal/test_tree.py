# SPDX-License-Identifier: Apache-2.0

"""Writing into a tenant's tree that has symbolic links that lead out of it."""

import os
import pathlib

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import tree


class TreeCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.root = directory / 'root'
        self.outside = directory / 'outside'
        for place in (self.root, self.outside):
            (place / 'etc').mkdir(parents=True)
        self.tree = tree.Tree(f'{self.root}/')

    def link(self, path, target):
        """Create a symbolic link that the tenant might create."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).symlink_to(target)

    def text(self, path):
        return (self.root / path).read_text(encoding='utf-8')

    def left(self, place=None):
        """All paths in the tree, or below another directory."""
        place = place or self.root
        return sorted(str(path.relative_to(place))
                      for path in place.rglob('*'))


class WriteTest(TreeCase):

    def test_what_a_run_that_was_killed_has_left(self):
        (self.root / 'etc/.file.new').write_text('half', encoding='utf-8')
        self.tree.write('etc/file', 'whole', 0o644)
        self.assertEqual('whole', self.text('etc/file'))
        self.assertEqual(['etc', 'etc/file'], self.left())

    def test_something_else_is_there(self):
        (self.root / 'etc/file/below').mkdir(parents=True)
        (self.root / 'etc/plain').touch()
        for path in ('etc/file', 'etc/plain/file'):
            error = self.assertRaises(exception.ChangeRefused,
                                      self.tree.write, path, 'text', 0o644)
            self.assertIn(f'/{path} cannot be written: ', str(error))
        self.assertEqual(['etc', 'etc/file', 'etc/file/below', 'etc/plain'],
                         self.left())


class LinksTest(TreeCase):
    """Links that lead out of the tree here lead into it on its own system."""

    def test_a_file_that_is_a_link_is_replaced(self):
        secret = self.outside / 'secret'
        secret.write_text('secret', encoding='utf-8')
        for target in (str(secret), '../../outside/secret'):
            self.link('etc/file', target)
            self.link('etc/.file.new', target)
            self.tree.write('etc/file', 'text', 0o644)
            self.assertFalse((self.root / 'etc/file').is_symlink())
            (self.root / 'etc/file').unlink()
        self.assertEqual('secret', secret.read_text(encoding='utf-8'))

    def test_a_directory(self):
        for number, target in enumerate((
                str(self.outside / 'etc'), '../../outside/etc',
                '../../../../../../../../etc', '/', '..')):
            self.link(f'etc/link{number}', target)
            before = self.left(self.outside)
            try:
                self.tree.write(f'etc/link{number}/new{number}', '', 0o644)
                self.assertTrue(any(self.root.rglob(f'new{number}')))
            except exception.ChangeRefused:
                # In the tree, the target does not exist.
                self.assertFalse((self.root / target.lstrip('/')).exists())
            self.assertEqual(before, self.left(self.outside))
            self.assertFalse(os.path.exists(f'/etc/new{number}'))
            self.assertFalse(os.path.exists(f'/new{number}'))

    def test_it_is_followed_as_the_system_does(self):
        (self.root / 'usr/etc').mkdir(parents=True)
        (self.root / 'etc').rmdir()
        self.link('etc', '/usr/../usr/./etc')
        self.tree.write('etc/new/file', 'text', 0o644)
        self.assertEqual('text', self.text('usr/etc/new/file'))

    def test_round_and_round(self):
        self.link('etc/a', 'b')
        self.link('etc/b', 'a')
        self.assertRaises(exception.ChangeRefused, self.tree.write,
                          'etc/a/file', 'text', 0o644)
        self.assertIsNone(self.tree.find_program(['etc/a/file']))


class ProgramTest(TreeCase):

    def add(self, path, mode=0o755):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).touch(mode)

    def test_what_is_none(self):
        self.add('plain', 0o644)
        (self.root / 'directory').mkdir()
        self.link('dangling', '/nowhere')
        (self.outside / 'program').touch(0o755)
        self.link('away', str(self.outside / 'program'))
        for path in ('nothing', 'plain', 'plain/below', 'directory',
                     'dangling', 'away'):
            self.assertIsNone(self.tree.find_program([path]), path)

    def test_links(self):
        self.add('opt/venv/bin/program')
        self.link('usr/local/bin/program', '/opt/venv/bin/program')
        self.link('bin', 'usr/local/bin')
        self.assertEqual('bin/program',
                         self.tree.find_program(['bin/program']))

    def test_it_cannot_be_read(self):
        self.assertRaises(exception.ChangeRefused, self.tree.find_program,
                          ['n' * 300])
