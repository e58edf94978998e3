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


def rendered(node, asked, shared=None):
    """Return all files for one kind of node."""
    return render.render([render.Wanted(node, shared)], asked)


def contents(node, asked, shared=None):
    """Return plain values by file name, parsed from the text of each file."""
    if shared is not None:
        shared = plugin.shared(*shared, (), node, asked)
    return {file.name: yaml.safe_load(file.text)
            for file in rendered(node, asked, shared).files}


class RenderTest(base.BaseTestCase):

    def test_texts_say_what_the_values_say(self):
        for node, asked, shared in (
                (T4, NONE, (SLICED, 4)), (SEVENS, SINGLE, None),
                (MANY, MIXED, (SLICED, 2)), (T4, NONE, (MPS, 2))):
            shared = shared and plugin.shared(*shared, (), node, asked)
            files = rendered(node, asked, shared).files
            for file in files:
                value = yaml.safe_load(file.text)
                self.assertEqual(value, json.loads(json.dumps(file.content)))
            self.assertEqual(
                [file.content for file in files],
                list(yaml.safe_load_all(render.stream(files))))

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
        done = rendered(MANY, MIXED, shared)
        self.assertEqual({
            'renameByDefault': True, 'failRequestsGreaterThanOne': False,
            'resources': [{'name': 'nvidia.com/mig-1g.5gb', 'replicas': 2}],
        }, done.files[0].content['sharing']['timeSlicing'])
        self.assertEqual(8, done.allocatable['nvidia.com/mig-1g.5gb.shared'])

    def test_what_the_plugin_fails_on_is_not_rendered(self):
        self.assertRaises(exception.InvalidValue, rendered, MANY,
                          SINGLE)

class MigPartedTest(base.BaseTestCase):

    def test_the_layout_comes_back(self):
        for node in (SEVENS, MANY):
            text = {file.name: file.text for file in rendered(
                node, plugin.suited(node)).files}[render.MIG_PARTED]
            entry = layout_file.LayoutFile.parse(text, 'x').entry('halves')
            self.assertEqual(
                {index: item.wanted for index, item
                 in enumerate(node.gpus)},
                entry.for_host([item.gpu for item in node.gpus]))

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


class SeveralTest(base.BaseTestCase):
    """Several layouts of one cluster, in one run or one after another."""

    def setUp(self):
        super().setUp()
        self.first = dataclasses.replace(SEVENS, name='sevenths')
        self.second = dataclasses.replace(MANY, name='many')

    def values(self, *given):
        files = render.render(
            [render.Wanted(node) for node in given], MIXED).files
        return {file.name: file for file in files}[render.OPERATOR]

    def check(self, content):
        """Check that both layouts are complete."""
        configs = content['devicePlugin']['config']['data']
        self.assertEqual({'default', 'sevenths', 'many'}, set(configs))
        layouts = layout_file.LayoutFile.parse(
            content['migManager']['config']['data']['config.yaml'], 'x')
        self.assertEqual({'all-disabled', 'sevenths', 'many'},
                         set(layouts.names))
        for node in (self.first, self.second):
            gpus = [item.gpu for item in node.gpus]
            self.assertEqual(
                {index: item.wanted for index, item
                 in enumerate(node.gpus)},
                layouts.entry(node.name).for_host(gpus))
            self.assertEqual({False}, {
                wanted.enabled for wanted in layouts.entry(
                    'all-disabled').for_host(gpus).values()})

    def test_in_one_run(self):
        self.check(self.values(self.first, self.second).content)

    def test_each_layout_has_its_files(self):
        done = render.render(
            [render.Wanted(self.first), render.Wanted(self.second)], MIXED)
        self.assertEqual(
            [f'{name}/{file}' for name in ('sevenths', 'many') for file in (
                render.PLUGIN, render.LABELS, render.POD)]
            + [render.MIG_PARTED, render.OPERATOR],
            [file.name for file in done.files])
        self.assertEqual({'nvidia.com/mig-1g.5gb': 14},
                         done.by_layout['sevenths'])

    def test_names(self):
        disabled = dataclasses.replace(SEVENS, name='all-disabled')
        default = dataclasses.replace(SEVENS, name='default')
        for given, word in (((self.first, self.first), 'sevenths'),
                            ((disabled,), 'all-disabled'),
                            ((default,), 'default')):
            error = self.assertRaises(exception.InvalidValue, self.values,
                                      *given)
            self.assertIn(word, str(error))
            self.assertIn('rename the entry', str(error))
        self.values(dataclasses.replace(WHOLE, name='all-disabled'))


class StrategyTest(base.BaseTestCase):

    def choose(self, *suited, asked=None):
        return render.choose_strategy(asked, suited)

    def test_one_for_all(self):
        self.assertIs(NONE, self.choose(NONE))
        self.assertIs(SINGLE, self.choose(NONE, SINGLE))
        self.assertIs(MIXED, self.choose(SINGLE, MIXED, NONE))
        self.assertIs(MIXED, self.choose(SINGLE, asked=MIXED))


class NodeTest(base.BaseTestCase):

    def test_a_name_that_no_label_can_have(self):
        for name in ('', '1g.5gb+me', '-a', 'a' * 64, 'a b'):
            error = self.assertRaises(exception.InvalidValue, nodes.of,
                                      name=name)
            self.assertIn('rename the entry', str(error))

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
             in kubernetes_node.wanted_by(gpus, entry)])
        self.assertEqual(
            [{}, {'3g.20gb': 2}],
            [item.wanted.counts for item
             in kubernetes_node.wanted_by(gpus, None)])
