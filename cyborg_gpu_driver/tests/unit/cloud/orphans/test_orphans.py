# SPDX-License-Identifier: Apache-2.0
"""Finding orphans in a cloud, and what is not an orphan."""

import dataclasses

import os_traits
from oslotest import base

from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import orphans
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests.unit.cloud.explain import explain_clouds as clouds

_PROVIDER = clouds.node().uuid


def _accounts(holders=('s1',), arqs=(), servers=(), migrations=(),
              deployables=None):
    tree = clouds.tree(clouds.node(holders=holders))
    return orphans.Accounts(
        (tree,), {_PROVIDER: 7} if deployables is None else deployables,
        arqs, dict.fromkeys(servers, 'trainer'), frozenset(migrations))


def _arq(state='Bound', server='s1', provider=_PROVIDER):
    return cyborg.AcceleratorRequest(
        uuid='a1', state=state, instance_uuid=server, device_rp_uuid=provider,
        hostname='compute1', device_profile_name='gpus')


class FindTest(base.BaseTestCase):

    def found(self, **changes):
        return {(item.kind.name, item.subject)
                for item in orphans.find(_accounts(**changes))}

    def test_a_server_with_all_that_it_should_have(self):
        self.assertEqual(set(), self.found(arqs=(_arq(),),
                                           servers=['s1']))

    def test_a_server_that_is_gone(self):
        for state in ('Bound', 'BindFailed', 'Deleting', 'UnbindFailed'):
            self.assertEqual({('REQUEST_OF_GONE', 'a1'),
                              ('ALLOCATION_OF_GONE', 's1')},
                             self.found(arqs=(_arq(state),)))

    def test_a_request_that_names_no_server(self):
        for state in ('Initial', 'Unbound', 'BindFailed'):
            self.assertEqual({('REQUEST_OF_NOBODY', 'a1')}, self.found(
                holders=(), arqs=(_arq(state, None, None),)))

    def test_nothing_of_a_live_server_is_left_over(self):
        for arqs in (_arq('BindFailed'),), (), (_arq(provider='other'),):
            self.assertEqual(set(), self.found(arqs=arqs, servers=['s1']))

    def test_a_migration_keeps_its_own(self):
        self.assertEqual(set(), self.found(migrations=['s1']))

    def test_only_who_asks_for_it_may_remove_a_provider(self):
        tree = clouds.tree(*(
            clouds.node(gpu=gpu, holders=holders, traits=[names.WITHDRAWN])
            for gpu, holders in (('0000:07:00.0', ()),
                                 ('0000:0f:00.0', ('s1',)))))
        free, used = tree.below
        for known, kind in ((tree.below, 'WITHDRAWN_PROVIDER'),
                            ((used,), 'STALE_PROVIDER')):
            accounts = orphans.Accounts(
                (tree,), {item.uuid: 7 for item in known},
                (_arq(provider=used.uuid),), {'s1': 'trainer'})
            found = orphans.find(accounts, providers=True)
            self.assertEqual([(kind, free.uuid)], [
                (item.kind.name, item.subject) for item in found])
            self.assertEqual(('compute1',), orphans.to_restart(found))
            self.assertEqual((), orphans.find(accounts))

    def test_what_cyborgs_own_driver_has_offered(self):
        tree = clouds.tree(clouds.node(holders=()))
        for traits, found in (
                ([names.WITHDRAWN, os_traits.OWNER_CYBORG],
                 ['WITHDRAWN_PROVIDER']),
                ([os_traits.OWNER_CYBORG], []), ([names.WITHDRAWN], [])):
            node = dataclasses.replace(
                tree.below[0], name='compute1_0000:07:00.0',
                traits=frozenset(traits))
            self.assertEqual(found, [item.kind.name for item in orphans.find(
                orphans.Accounts((dataclasses.replace(tree, below=(node,)),),
                                 {node.uuid: 1}, (), {}), providers=True)])

    def test_what_is_not_cyborgs_is_none_of_ours(self):
        node = facts.Node('u', 'compute1_0000:07:00.0', {
            'CUSTOM_PCI': clouds.inventory()}, holders={
                'x': {'CUSTOM_PCI': 1}})
        accounts = orphans.Accounts((clouds.tree(node),), {}, (), {})
        self.assertEqual((), orphans.find(accounts))
        self.assertEqual(set(), orphans.consumers_of(accounts.trees))

    def test_only_what_lasts(self):
        before = orphans.find(_accounts(arqs=(_arq(),)))
        now = orphans.find(_accounts(holders=(), arqs=(_arq('Deleting'),)))
        self.assertEqual(['REQUEST_OF_GONE'], [
            item.kind.name for item in orphans.lasting(before, now)])
        self.assertEqual((), orphans.lasting((), now))
