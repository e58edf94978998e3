# SPDX-License-Identifier: Apache-2.0

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.partition import boards

UUID = 'GPU-8a100000-0000-4000-8000-00000000000a'


def rules(name='some', mode=policy.Mode.PASSTHROUGH, **fields):
    return policy.Policy(name, mode, **fields)


def gpu(**fields):
    return boards.gpu((), **{
        'mig': None, 'model': 'NVIDIA A100-SXM4-80GB', 'uuid': UUID,
        'numa_node': 1, **fields})


class TestMatches(base.BaseTestCase):

    def test_nothing_asked_matches_all(self):
        self.assertTrue(rules().matches(gpu()))
        self.assertTrue(rules().matches(gpu(model=None, uuid=None,
                                            numa_node=None)))

    def test_each_condition(self):
        here, there = model.PciAddress(0, 7, 0, 0), model.PciAddress(
            0, 8, 0, 0)
        for fields, matches in (
                ({'match_address': (there, here)}, True),
                ({'match_address': (there,)}, False),
                ({'match_uuid': (UUID.upper(),)}, True),
                ({'match_uuid': ('GPU-other',)}, False),
                ({'match_model': ('*a100*',)}, True),
                ({'match_model': ('*H100*', '20B2')}, True),
                ({'match_model': ('20b?',)}, True),
                ({'match_model': ('A100',)}, False),
                ({'match_numa_node': (0, 1)}, True),
                ({'match_numa_node': (0,)}, False)):
            self.assertIs(matches, rules(**fields).matches(gpu()), fields)

    def test_all_conditions(self):
        self.assertFalse(rules(match_model=('*A100*',),
                               match_numa_node=(0,)).matches(gpu()))
        self.assertTrue(rules(match_model=('*A100*',),
                              match_numa_node=(1,)).matches(gpu()))

    def test_what_is_unknown_matches_nothing(self):
        for fields in ({'match_uuid': (UUID,)}, {'match_numa_node': (0,)},
                       {'match_model': ('*A100*',)}):
            self.assertFalse(rules(**fields).matches(
                gpu(uuid=None, numa_node=None, model=None)), fields)

    def test_unseen_by_nvml_is_matched_by_device_id(self):
        self.assertTrue(rules(match_model=('20b2',)).matches(
            gpu(model=None)))


class TestChoose(base.BaseTestCase):

    def test_first_match(self):
        listed = (rules('one', match_numa_node=(0,)), rules('two'),
                  rules('three'))
        self.assertEqual('two', policy.choose(gpu(), listed).name)
        self.assertEqual('one', policy.choose(gpu(numa_node=0),
                                              listed).name)

    def test_no_match_is_not_offered(self):
        self.assertIsNone(policy.choose(
            gpu(), (rules(match_numa_node=(0,)),)))
        self.assertIsNone(policy.choose(gpu(), ()))

    def test_none_configured(self):
        for mig, vfs, mode in (
                (None, 0, policy.Mode.PASSTHROUGH),
                (None, 4, policy.Mode.PASSTHROUGH),
                (model.Mig(False, False), 4, policy.Mode.PASSTHROUGH),
                (model.Mig(True, True), 0, policy.Mode.PASSTHROUGH),
                (model.Mig(True, True), 4, policy.Mode.MIG)):
            chosen = policy.choose(gpu(mig=mig, vfs=boards.vfs(vfs)), None)
            self.assertEqual(('automatic', mode), (chosen.name, chosen.mode))
