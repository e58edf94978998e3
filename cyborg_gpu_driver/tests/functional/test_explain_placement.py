# SPDX-License-Identifier: Apache-2.0
"""What is read of a small cloud agrees with Placement's own candidates."""

import itertools
import logging
import uuid

import fixtures
import hypothesis
import os_traits
from hypothesis import strategies
from oslotest import base as oslotest

from cyborg_gpu_driver.cloud import explain
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.cloud import question
from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import base
from cyborg_gpu_driver.tests.unit.cloud import services
from demo_lib import client
from demo_lib import placement_service

_CLASSES = ('PGPU', 'CUSTOM_NVIDIA_1G_10GB')
_TRAITS = ('CUSTOM_GPU_MODEL_A', 'CUSTOM_GPU_MODEL_B')
_UNHEARD = 'CUSTOM_GPU_MODEL_C'
_REQUESTS = 12 if scope.ALL else 6
"""Requests for each cloud."""

_subsets = strategies.frozensets(strategies.sampled_from(_TRAITS))
_some = strategies.one_of(strategies.just(frozenset()), _subsets)
_inventory = strategies.fixed_dictionaries({
    'total': strategies.integers(1, 4),
    'reserved': strategies.sampled_from((0, 0, 0, 1, 4)),
    'used': strategies.sampled_from((0, 0, 0, 1, 4)),
    'max_unit': strategies.sampled_from((4, 4, 4, 1)),
    'step_size': strategies.sampled_from((1, 1, 1, 2))})
_provider = strategies.tuples(
    strategies.sampled_from(_CLASSES), _inventory, _subsets)
_tree = strategies.fixed_dictionaries({
    'vcpus': strategies.integers(1, 4),
    'able': strategies.sampled_from((True, True, True, True, False)),
    'disabled': strategies.sampled_from(
        (False, False, False, False, True)),
    'traits': _subsets,
    'below': strategies.lists(_provider, min_size=1, max_size=4)})


@strategies.composite
def _groups(draw):
    found = []
    for _ in range(draw(strategies.sampled_from((1, 1, 2, 3)))):
        required = draw(_some)
        resources = draw(strategies.dictionaries(
            strategies.sampled_from(_CLASSES),
            strategies.sampled_from((1, 1, 2, 3)), min_size=1,
            max_size=draw(strategies.sampled_from((1, 1, 1, 2)))))
        group = {f'resources:{name}': str(amount)
                 for name, amount in resources.items()}
        group.update((f'trait:{trait}', 'required') for trait in required)
        group.update((f'trait:{trait}', 'forbidden')
                     for trait in draw(_some) - required)
        if draw(strategies.integers(0, 20)) == 20:
            group[f'trait:{_UNHEARD}'] = draw(
                strategies.sampled_from(('required', 'forbidden')))
        found.append(group)
    return found


_specs = strategies.one_of(strategies.just({}), strategies.fixed_dictionaries(
    {}, optional={
        'group_policy': strategies.sampled_from(('none', 'isolate')),
        'trait:CUSTOM_GPU_MODEL_A': strategies.sampled_from(
            ('required', 'forbidden')),
        'resources:PGPU': strategies.just('1'),
        'resources1:CUSTOM_NVIDIA_1G_10GB': strategies.just('1')}))


class AgreementTest(oslotest.BaseTestCase):
    """Up to two hosts in the released Placement, and nothing else."""

    def setUp(self):
        super().setUp()
        directory = self.useFixture(fixtures.TempDir()).path
        _, database = base.make_templates().copy(directory)
        self.service = placement_service.PlacementService(
            directory, database)
        self.addCleanup(self.service.stop)
        self.placement = client.Placement(self.service.url)
        for trait in _TRAITS:
            self.placement.put(f'/traits/{trait}')
        for name in _CLASSES:
            if name.startswith('CUSTOM_'):
                self.placement.put(f'/resource_classes/{name}')
        self.cloud = self.useFixture(services.Services({
            'placement': services.forwarded(
                self.service.url, 'admin')})).cloud
        self.useFixture(fixtures.FakeLogger(level=logging.WARNING))
        self.outcomes = {True: 0, False: 0}

    def make(self, name, inventories, traits, parent=None):
        """Create a provider with inventories and traits; return its UUID."""
        made = str(uuid.uuid4())
        self.placement.post('/resource_providers', {
            'name': name, 'uuid': made, 'parent_provider_uuid': parent})
        self.placement.put(f'/resource_providers/{made}/inventories', {
            'resource_provider_generation': 0, 'inventories': {
                key: {part: value[part] for part in value if part != 'used'}
                for key, value in inventories.items()}})
        self.placement.put(f'/resource_providers/{made}/traits', {
            'resource_provider_generation': 1, 'traits': sorted(traits)})
        return made

    def fill(self, provider, name, inventory):
        """Allocate some of an inventory, before any of it is reserved."""
        used = min(inventory['used'], inventory['total'])
        if not used:
            return
        consumer = str(uuid.uuid4())
        self.placement.put(f'/allocations/{consumer}', {
            'allocations': {provider: {'resources': {name: used}}},
            'project_id': client.PROJECT, 'user_id': client.USER,
            'consumer_generation': None, 'consumer_type': 'INSTANCE'})
        self.consumers.append(consumer)

    def build(self, hosts):
        """Create a cloud of these compute nodes."""
        self.consumers, self.made = [], []
        for number, host in enumerate(hosts):
            traits = set(host['traits'])
            if host['able']:
                traits.add(os_traits.COMPUTE_ACCELERATORS)
            if host['disabled']:
                traits.add(os_traits.COMPUTE_STATUS_DISABLED)
            root = self.make(f'compute{number}', {
                'VCPU': {'total': host['vcpus']}}, traits)
            self.made.append(root)
            for index, (name, inventory, owned) in enumerate(host['below']):
                self.add(f'compute{number}_gpu_0000:0{index}:00.0_x', root,
                         name, inventory, owned)

    def add(self, title, root, name, inventory, owned):
        """Create a GPU's provider, fill it, and then reserve some of it."""
        inventory = dict(inventory, reserved=min(
            inventory['reserved'], inventory['total']))
        free = {'total': inventory['total'], 'reserved': 0}
        child = self.make(title, {name: free}, {
            *owned, os_traits.OWNER_CYBORG}, root)
        self.made.insert(0, child)
        self.fill(child, name, inventory)
        generation = self.placement.get(
            f'/resource_providers/{child}')['generation']
        self.placement.put(f'/resource_providers/{child}/inventories', {
            'resource_provider_generation': generation, 'inventories': {
                name: {key: value for key, value in inventory.items()
                       if key != 'used'}}})

    def clear(self):
        for consumer in self.consumers:
            self.placement.delete(f'/allocations/{consumer}')
        for provider in self.made:
            self.placement.delete(f'/resource_providers/{provider}')

    def check(self, hosts, requests):
        """Check that each refusal has a reason."""
        self.build(hosts)
        try:
            roots = {item['uuid'] for host in ('compute0', 'compute1')
                     for item in placement.listed(self.cloud, name=host)}
            for groups, specs in requests:
                wanted = request.make(
                    request.Flavor('flavor', 1, 0, 0, specs), 'profile',
                    groups)
                self.explained(wanted, facts.Facts(
                    trees=placement.read_trees(self.cloud, roots, wanted),
                    classes=question.classes(self.cloud),
                    unknown_traits=question.unknown_traits(
                        self.cloud, wanted),
                    answer=question.candidates(self.cloud, wanted)))
        finally:
            self.clear()

    def explained(self, wanted, known):
        ours = explain.verdict(wanted, known)
        self.outcomes[ours.schedulable] += 1
        if known.answer.refusal:
            # The refusal itself is one of them.
            self.assertGreater(sum(item.blocks for item in ours.findings), 1)
        for host in ours.hosts:
            if host.scheduled or any(item.blocks for item in ours.findings):
                continue
            by_group = itertools.groupby(
                host.candidates, lambda candidate: candidate.group)
            self.assertTrue(
                any(item.blocks for item in host.findings)
                or any(not any(candidate.accepted for candidate in mine)
                       for _, mine in by_group), host)

    def test_random_clouds(self):
        @hypothesis.settings(max_examples=scope.examples(20), deadline=None,
                             derandomize=True, database=None)
        @hypothesis.given(
            strategies.lists(_tree, min_size=1, max_size=2),
            strategies.lists(strategies.tuples(_groups(), _specs),
                             min_size=_REQUESTS, max_size=_REQUESTS))
        def check(hosts, requests):
            self.check(hosts, requests)

        check()
        self.assertLess(20 if scope.ALL else 0,
                        min(self.outcomes.values()), self.outcomes)
