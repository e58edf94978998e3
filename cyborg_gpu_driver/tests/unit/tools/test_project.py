# SPDX-License-Identifier: Apache-2.0


"""The files that describe the project to packagers and CI agree."""

import configparser
import pathlib
import re
import shutil
import subprocess

import fixtures
import yaml
from oslotest import base

from cyborg_gpu_driver.tests.unit.tools import documents

ROOT = documents.ROOT


class PathsTest(base.BaseTestCase):

    def test_every_file_that_a_page_names_exists(self):
        found = 0
        for page in documents.pages():
            for name in re.findall(
                    r'``(cyborg_gpu_driver/[\w/.-]+|\w+/[\w/]+\.py)``',
                    documents.text(page)):
                self.assertTrue(
                    any((place / name).exists()
                        for place in (ROOT, ROOT / 'cyborg_gpu_driver')),
                    f'{page}: {name}')
                found += 1
        self.assertGreater(found, 8)


class SystemPackagesTest(base.BaseTestCase):

    def run_script(self, *arguments, text=None):
        root = ROOT
        if text is not None:
            root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
            (root / 'tools').mkdir()
            shutil.copy(ROOT / 'tools' / 'system-packages', root / 'tools')
            (root / 'bindep.txt').write_text(text, encoding='utf-8')
        return subprocess.run(
            [root / 'tools' / 'system-packages', *arguments],
            capture_output=True, text=True, check=False)

    def packages(self, *arguments, text=None):
        done = self.run_script(*arguments, text=text)
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        return done.stdout.split()

    def test_no_script_has_a_list_of_its_own(self):
        # The other packages share their names with programs.
        names = [name for name in self.packages('minicloud')
                 if '-' in name and name != 'rabbitmq-server']
        self.assertIn('mariadb-server', names)
        for path in (ROOT / '.ci' / 'run', *ROOT.glob('tools/*'),
                     *ROOT.glob('devstack/**/*')):
            if path.is_file():
                text = path.read_text(encoding='utf-8')
                for name in names:
                    self.assertNotIn(f' {name}', text, path)


class ZuulTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        documents_of = yaml.safe_load(
            (ROOT / '.zuul.yaml').read_text(encoding='utf-8'))
        self.jobs = {item['job']['name']: item['job']
                     for item in documents_of if 'job' in item}
        (self.project,) = (item['project'] for item in documents_of
                           if 'project' in item)

    def test_every_job_runs_what_there_is(self):
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(ROOT / 'tox.ini')
        known = {section.partition(':')[2] for section in parser}
        known |= {f'cyborg-{path.stem}'
                  for path in (ROOT / 'releases').glob('*.txt')}
        for name, job in self.jobs.items():
            if 'run' in job:
                self.assertTrue((ROOT / job['run']).is_file(), name)
            elif not job.get('abstract'):
                wanted = job['vars']['tox_envlist'].split(',')
                self.assertLessEqual(set(wanted), known, name)


class PackageTest(base.BaseTestCase):

    def test_every_pattern_of_data_files_names_files(self):
        # pbr installs what there is, and says nothing if that is nothing.
        parser = configparser.ConfigParser()
        parser.read(ROOT / 'setup.cfg')
        for line in parser['files']['data_files'].strip().splitlines():
            pattern = line.partition(' = ')[2]
            self.assertNotEqual([], [*ROOT.glob(pattern)], line)

    def test_the_metadata_name_every_python_that_is_supported(self):
        parser = configparser.ConfigParser()
        parser.read(ROOT / 'setup.cfg')
        metadata = parser['metadata']
        self.assertEqual('>=3.10', metadata['python_requires'])
        for minor in range(10, 15):
            self.assertIn(f'\nProgramming Language :: Python :: 3.{minor}\n',
                          metadata['classifier'] + '\n')
