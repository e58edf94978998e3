# SPDX-License-Identifier: Apache-2.0

"""What a GPU of mode auto offers: the same, whichever role it has."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.tests.unit.partition.offer import test_offers

_WHOLE, _MIG, _VGPU = (policy.Mode.PASSTHROUGH, policy.Mode.MIG,
                       policy.Mode.VGPU)
RULES = policy.Policy(
    'elastic', policy.Mode.AUTO, roles=(_WHOLE, _MIG, _VGPU),
    profiles=('1g.5gb', '3g.20gb'), vgpu_types=('A100-4C', 'A100-3-20C'))


def gpu(*live, sliced=True, **fields):
    """A partitioned GPU, as NVML shows it."""
    found = test_offers.a100(*live, driver='nvidia', visible_to_nvml=True,
                             device_id='20b0', **fields)
    return found if sliced else dataclasses.replace(
        found, mig=dataclasses.replace(found.mig, enabled=False,
                                       pending=False))


def at_rest(**fields):
    """The same GPU at rest, ready to be assigned as a whole."""
    return dataclasses.replace(
        gpu(), driver='vfio-pci', visible_to_nvml=False, mig=None, vfs=(),
        sriov_numvfs=0, vgpu_types=(), framework=model.Framework.NONE,
        **fields)


BY_ROLE = {'mig': roles.of(gpu()),
             'vgpu': roles.of(gpu(sliced=False))}


class OffersTest(base.BaseTestCase):

    def offers(self, now, *claimed, by_role=BY_ROLE, rules=RULES):
        return {item.profile: item for item in offers.offers(
            now, rules, must_be_bound=True,
            situation=offers.Situation(frozenset(claimed), by_role))}

    def creatable(self, *arguments, **options):
        return {profile: item.creatable for profile, item
                in self.offers(*arguments, **options).items()}

    def test_all_at_once_while_it_is_idle(self):
        self.assertEqual(
            {'passthrough': 1, '1g.5gb': 7, '3g.20gb': 2, 'A100-4C': 10},
            self.creatable(at_rest()))

    def test_what_is_reported_is_the_same_in_every_role(self):
        def reported(now, *claimed):
            return {item.profile: (item.total, item.parents, item.problem,
                                   item.vgpu_type_id, item.mode)
                    for item in self.offers(now, *claimed).values()}

        idle = reported(at_rest())
        self.assertEqual(idle, reported(gpu(), _MIG))
        self.assertEqual(idle, reported(gpu(sliced=False), _VGPU))
        self.assertEqual({''}, {row[2] for row in idle.values()})

    def test_one_role_leaves_nothing_of_the_others(self):
        self.assertEqual(
            {'passthrough': 0, '1g.5gb': 7, '3g.20gb': 2, 'A100-4C': 0},
            self.creatable(gpu(), _MIG))
        self.assertEqual(
            {'passthrough': 0, '1g.5gb': 0, '3g.20gb': 0, 'A100-4C': 10},
            self.creatable(gpu(sliced=False), _VGPU))

    def test_what_has_no_claim_keeps_the_role_too(self):
        found = self.creatable(gpu(('1g.5gb', 0)))
        self.assertEqual((0, 0), (found['passthrough'], found['A100-4C']))
        self.assertLess(0, found['1g.5gb'])

    def test_idle_but_not_at_rest(self):
        found = self.offers(gpu())
        self.assertEqual((0, 2, 10), tuple(
            found[name].creatable
            for name in ('passthrough', '3g.20gb', 'A100-4C')))
        self.assertIn('MIG mode is on', found['passthrough'].busy)

    def test_claims_that_a_reboot_has_left(self):
        """The claims decide the role, whatever state the hardware is in."""
        found = self.creatable(at_rest(), _MIG)
        self.assertEqual((0, 0), (found['passthrough'], found['A100-4C']))

    def test_a_role_that_is_not_known_yet(self):
        found = self.offers(at_rest(), by_role={})
        self.assertEqual({'passthrough', 'mig', 'vgpu'}, {*found})
        self.assertIn('as soon as the GPU is idle', found['mig'].problem)

    def test_a_role_that_the_board_does_not_have(self):
        known = {**BY_ROLE, 'mig': roles.RoleFacts(
            '20b0', 'this GPU does not support MIG')}
        self.assertEqual('this GPU does not support MIG',
                         self.offers(at_rest(), by_role=known)
                         ['mig'].problem)
        (complaint,) = offers.check_policy(at_rest(), RULES, known)
        self.assertIn('policy elastic', complaint)
        self.assertIn('roles: mig is not offered', complaint)

    def test_facts_of_another_board(self):
        other = dataclasses.replace(BY_ROLE['mig'], device_id='20b2')
        self.assertIn('not been read', self.offers(
            at_rest(), by_role={**BY_ROLE, 'mig': other})
            ['mig'].problem)

    def test_types_go_to_their_role(self):
        self.assertEqual(
            ('A100-4C',), roles.rules(RULES, _VGPU, gpu()).vgpu_types)
        self.assertEqual(
            ('A100-3-20C',), roles.rules(RULES, _MIG, gpu()).vgpu_types)


class SettledTest(base.BaseTestCase):

    def creatable(self, **known):
        found = offers.offers(
            at_rest(), RULES, must_be_bound=True,
            situation=offers.Situation(frozenset(), BY_ROLE))
        return {item.profile: item.creatable for item in offers.settled(
            found, **{'is_taken': False, 'is_partitioning': False, **known})}

    def test_a_server_has_the_whole(self):
        self.assertEqual(
            {'passthrough': 1, '1g.5gb': 0, '3g.20gb': 0, 'A100-4C': 0},
            self.creatable(is_taken=True))

    def test_a_bind_may_be_parting_it(self):
        self.assertEqual(
            {'passthrough': 0, '1g.5gb': 7, '3g.20gb': 2, 'A100-4C': 10},
            self.creatable(is_partitioning=True))

    def test_a_gpu_of_one_mode_is_as_it_is(self):
        whole = offers.offers(at_rest(), RULES.in_role(_WHOLE))
        self.assertEqual(whole, offers.settled(whole, True, True))


class RestTest(base.BaseTestCase):

    def test_ready_to_be_had_as_a_whole(self):
        for now in (gpu(), gpu(sliced=False), at_rest()):
            self.assertIs(_WHOLE, roles.resting(now, RULES))

    def test_without_whole_it_stays_as_it_is(self):
        rules = dataclasses.replace(RULES, roles=(_MIG, _VGPU))
        self.assertIs(_MIG, roles.resting(gpu(), rules))
        self.assertIs(_VGPU, roles.resting(gpu(sliced=False), rules))
        self.assertIs(_MIG, roles.resting(at_rest(), rules))

    def test_one_board_is_the_same_in_any_state(self):
        known = [roles.complete(now, BY_ROLE) for now in (
            gpu(), gpu(sliced=False), at_rest())]
        self.assertEqual(1, len({(now.vgpu_types, now.mig.profiles)
                                 for now in known}))
