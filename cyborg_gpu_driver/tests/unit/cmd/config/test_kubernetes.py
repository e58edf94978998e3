# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu kubernetes render`` on simulated hosts."""

import json
import os

import yaml

from cyborg_gpu_driver.kubernetes import render
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.tests.unit.cmd.layout import layouts


class RenderCase(layouts.LayoutCase):

    def render(self, *arguments, code=0):
        return self.run_on_host('kubernetes', 'render', *arguments,
                                code=code)

    def found(self, *arguments):
        """The JSON output of the command."""
        return json.loads(self.render(*arguments, '-f', 'json')[0])

    def refused(self, arguments, *words):
        output, errors = self.render(*arguments, code=1)
        self.assertEqual('', output)
        for word in words:
            self.assertIn(word, errors)
        self.assertNotIn('Traceback', errors)


class LayoutTest(RenderCase):

    def test_layout_of_a_file(self):
        found = self.found('--layout', self.file, '--name', 'halves')
        self.assertEqual('single', found['strategy'])
        self.assertEqual({'nvidia.com/gpu': 8}, found['allocatable'])
        self.assertEqual(
            [{'devices': 'all', 'mig-enabled': True,
              'mig-devices': {'3g.40gb': 2}}],
            found['files'][render.MIG_PARTED]['mig-configs']['halves'])

    def test_layout_that_is_there(self):
        _, errors = self.render('--layout', self.file, '--name', 'halves')
        self.assertIn('GPU 0000:18:00.0 does not match the layout yet: '
                      '2 x 3g.40gb', errors)
        self.apply('halves')
        _, errors = self.render('--layout', self.file, '--name', 'halves')
        self.assertNotIn('does not match the layout yet', errors)
        found, there = (self.found('--name', 'halves', *more) for more in (
            (), ('--layout', self.file)))
        self.assertEqual(there, found)
        self.assertEqual(
            ['all-disabled', 'current'], list(self.found()['files'][
                render.MIG_PARTED]['mig-configs']))

    def test_some_of_the_gpus(self):
        self.apply('mixed')
        found = self.found('--gpu', '2', '--gpu', '0000:18:00.0',
                           '--gpu', '0', '--strategy', 'none')
        self.assertEqual({'nvidia.com/gpu': 2}, found['allocatable'])
        self.assertEqual(2, len(found['notes']))
        self.assertEqual([[0], [1]], [
            item['devices'] for item in found['files'][render.MIG_PARTED][
                'mig-configs']['current']])

    def test_every_simulated_host_can_be_rendered(self):
        for host in files.names():
            self.run_program('--simulate', self.part(host), 'kubernetes',
                             'render',
                             '--strategy', 'none', '--replicas', '2')


class OutputTest(RenderCase):

    host = 't4x4'
    names = [render.PLUGIN, render.LABELS, render.POD, render.OPERATOR]

    def test_files_of_a_directory(self):
        directory = os.path.join(self.directory, 'new', 'files')
        paths = self.render('--output', directory)[0].splitlines()
        self.assertEqual([os.path.join(directory, name)
                          for name in self.names], paths)
        found = self.found('--output', directory)
        self.assertEqual(paths, found['written'])
        for path in paths:
            with open(path, encoding='utf-8') as stream:
                self.assertEqual(
                    found['files'][os.path.basename(path)],
                    yaml.safe_load(stream))
        self.refused(('--strategy', 'none', '--output', self.file),
                     '--output', self.file)

    def test_standard_output_names_each_document(self):
        output, _ = self.render()
        self.assertEqual(self.names, [
            line[2:] for line in output.splitlines()
            if line.startswith('# ')])

    def test_one_gpu_becomes_four(self):
        for method, key in ('time-slicing', 'timeSlicing'), ('mps', 'mps'):
            found = self.found('--gpu', '0', '--replicas', '4', '--sharing',
                               method)
            self.assertEqual({'nvidia.com/gpu': 4}, found['allocatable'])
            sharing = found['files'][render.PLUGIN]['sharing'][key]
            self.assertEqual(4, sharing['resources'][0]['replicas'])


class RefusalTest(RenderCase):

    def test_sharing_that_cannot_be(self):
        self.refused(('--strategy', 'none', '--replicas', '1'), '2 or more')
        for option in (('--sharing', 'mps'), ('--resource', 'gpu'),
                       ('--rename',), ('--allow-several',)):
            self.refused(option, option[0], '--replicas')

    def test_layouts_that_do_not_suit(self):
        self.refused(('--layout', self.file, '--name', 'too-much'),
                     'at most 2')
        self.refused(('--layout', '/nonexistent'), '/nonexistent')
        self.refused(('--name', 'with space'), 'with space', 'label')

    def test_gpus_that_are_not_there(self):
        self.refused(('--gpu', '8'), 'there is no GPU 8')
        self.refused(('--gpu', '0000:ff:00.0'), '0000:ff:00.0')

    def test_a_gpu_that_nvml_does_not_see(self):
        self.host = 'mixed'
        self.state += '.mixed'
        self.refused(('--gpu', '0000:c1:00.0'), 'GPU 3 (0000:c1:00.0)',
                     'vfio-pci')

    def test_a_gpu_that_is_lost(self):
        self.machine().lose_gpu('0000:18:00.0')
        self.refused((), 'GPU 0 (0000:18:00.0) cannot be reached: lost')
        found = self.found('--gpu', '3', '--strategy', 'none')
        self.assertEqual({'nvidia.com/gpu': 1}, found['allocatable'])
