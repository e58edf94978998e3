# SPDX-License-Identifier: Apache-2.0

"""The files for a node, each parsed as its reader would."""

import dataclasses
import json
import re

import yaml
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.kubernetes import node as kubernetes_node
from cyborg_gpu_driver.kubernetes import plugin
from cyborg_gpu_driver.kubernetes import render
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.tests.unit.kubernetes import nodes

NONE, SINGLE, MIXED = plugin.Strategy
SLICED, MPS = plugin.Method

T4 = nodes.of(nodes.cut(nodes.T4), name='t4')
WHOLE = nodes.of(nodes.cut(nodes.A100))
SEVENS = nodes.of(*[nodes.cut(nodes.A100, {'1g.5gb': 7})] * 2)
MANY = nodes.of(nodes.cut(nodes.A100),
                nodes.cut(nodes.A100, {'1g.5gb': 4, '3g.20gb': 1}),
                nodes.cut(nodes.RTX, {'1g.24gb+me.all': 1,
                                      '1g.24gb-me': 3}),
                nodes.cut(nodes.A100))
_DNS_LABEL = re.compile(r'[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?')


def contents(node, asked, shared=None):
    """Return plain values by file name, parsed from the text of each file."""
    if shared is not None:
        shared = plugin.shared(*shared, (), node, asked)
    return {name: yaml.safe_load(render.dump(content)) for name, content
            in render.render(node, asked, shared).files.items()}


class RenderTest(base.BaseTestCase):

    def test_texts_say_what_the_values_say(self):
        for node, asked, shared in (
                (T4, NONE, (SLICED, 4)), (SEVENS, SINGLE, None),
                (MANY, MIXED, (SLICED, 2)), (T4, NONE, (MPS, 2))):
            self.assertEqual(
                contents(node, asked, shared),
                json.loads(json.dumps(render.render(
                    node, asked, shared and plugin.shared(
                        *shared, (), node, asked)).files)))

    def test_plugin_configuration(self):
        found = contents(T4, NONE, (SLICED, 4))[render.PLUGIN]
        self.assertEqual({
            'version': 'v1', 'flags': {'migStrategy': 'none'},
            'sharing': {'timeSlicing': {
                'renameByDefault': False, 'failRequestsGreaterThanOne': True,
                'resources': [{'name': 'nvidia.com/gpu', 'replicas': 4}]}}},
            found)
        self.assertEqual(
            {'version': 'v1', 'flags': {'migStrategy': 'single'}},
            contents(SEVENS, SINGLE)[render.PLUGIN])

    def test_choices_of_sharing(self):
        shared = plugin.shared(SLICED, 2, ('mig-1g.5gb',), MANY, MIXED,
                               rename=True, several=True)
        done = render.render(MANY, MIXED, shared)
        self.assertEqual({
            'renameByDefault': True, 'failRequestsGreaterThanOne': False,
            'resources': [{'name': 'nvidia.com/mig-1g.5gb', 'replicas': 2}],
        }, done.files[render.PLUGIN]['sharing']['timeSlicing'])
        self.assertEqual(8, done.allocatable['nvidia.com/mig-1g.5gb.shared'])

    def test_what_the_plugin_fails_on_is_not_rendered(self):
        self.assertRaises(exception.InvalidValue, render.render, MANY, SINGLE)


class MigPartedTest(base.BaseTestCase):

    def test_the_layout_comes_back(self):
        for node in (SEVENS, MANY):
            layouts = layout_file.LayoutFile.parse(render.dump(
                render.render(node, plugin.suited(node)).files[
                    render.MIG_PARTED]), 'x')
            gpus = [item.gpu for item in node.gpus]
            self.assertEqual(
                {index: item.wanted for index, item
                 in enumerate(node.gpus)},
                layouts.entry('halves').for_host(gpus))
            self.assertEqual({False}, {
                wanted.enabled for wanted in layouts.entry(
                    'all-disabled').for_host(gpus).values()})

    def test_gpus_that_are_alike_share_an_item(self):
        sections = contents(MANY, MIXED)[render.MIG_PARTED][
            'mig-configs']['halves']
        self.assertEqual([[0, 3], [1], [2]],
                         [section['devices'] for section in sections])
        section, = contents(SEVENS, SINGLE)[render.MIG_PARTED][
            'mig-configs']['halves']
        self.assertEqual('all', section['devices'])


class ClusterTest(base.BaseTestCase):
    """What the cluster gets: labels, a pod, the values of the operator."""

    def test_pod_asks_for_each_resource_once(self):
        found = contents(MANY, MIXED, (SLICED, 2))
        containers = found[render.POD]['spec']['containers']
        self.assertEqual(
            [{'nvidia.com/gpu': 1}, {'nvidia.com/mig-3g.20gb': 1},
             {'nvidia.com/mig-1g.5gb': 1},
             {'nvidia.com/mig-1g.24gb.me.all': 1},
             {'nvidia.com/mig-1g.24gb-me': 1}],
            [container['resources']['limits'] for container in containers])
        names = [container['name'] for container in containers]
        self.assertEqual(len(names), len(set(names)))
        for name in names:
            self.assertTrue(_DNS_LABEL.fullmatch(name), name)

    def test_operator_values_hold_the_files(self):
        found = contents(MANY, MIXED, (SLICED, 2))
        values = found[render.OPERATOR]
        self.assertEqual('mixed', values['mig']['strategy'])
        configs = values['devicePlugin']['config']['data']
        given = found[render.LABELS]['metadata']['labels']
        self.assertEqual(
            found[render.PLUGIN], yaml.safe_load(
                configs[given[render.PLUGIN_CONFIG]]))
        # A node without the label is not shared.
        self.assertNotIn('sharing', yaml.safe_load(
            configs[values['devicePlugin']['config']['default']]))
        layouts = layout_file.LayoutFile.parse(
            values['migManager']['config']['data']['config.yaml'], 'x')
        self.assertEqual(('all-disabled', given[render.MIG_CONFIG]),
                         layouts.names)


class NodeTest(base.BaseTestCase):

    def test_names(self):
        for name in ('', '1g.5gb+me', '-a', 'a' * 64, 'a b'):
            error = self.assertRaises(exception.InvalidValue, nodes.of,
                                      name=name)
            self.assertIn('rename the entry', str(error))
        for name in ('all-disabled', 'default'):
            node = dataclasses.replace(SEVENS, name=name)
            error = self.assertRaises(exception.InvalidValue, render.render,
                                      node, SINGLE)
            self.assertIn(f"'{name}'", str(error))
            self.assertIn('rename the entry', str(error))
        render.render(dataclasses.replace(WHOLE, name='all-disabled'), NONE)

    def test_gpus_that_a_layout_does_not_speak_of_stay(self):
        gpus = [nodes.boards.gpu(nodes.boards.A100_40),
                nodes.boards.gpu(nodes.boards.A100_40,
                                 [('3g.20gb', 0), ('3g.20gb', 4)])]
        entry = layout_file.LayoutFile.parse(
            'version: v1\nmig-configs: {x: [{devices: [0], mig-enabled: '
            'true, mig-devices: {"1g.5gb": 7}}]}', 'x').entry()
        self.assertEqual(
            [{'1g.5gb': 7}, {'3g.20gb': 2}],
            [item.wanted.counts for item
             in kubernetes_node.wanted_by(gpus, entry, (0, 1))])
        self.assertEqual(
            [{}, {'3g.20gb': 2}],
            [item.wanted.counts for item
             in kubernetes_node.wanted_by(gpus, None, (0, 1))])
