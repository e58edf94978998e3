# SPDX-License-Identifier: Apache-2.0

"""Plans of changes; a plan that is carried out leaves nothing to do."""

import dataclasses

import hypothesis
from hypothesis import strategies
from oslotest import base

from cyborg_gpu_driver.cloud import plan
from cyborg_gpu_driver.cloud import quota
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.cloud import samples

_CREATE, _UPDATE, _REPLACE, _DELETE, _KEEP, _REFUSE = plan.Action
_SLICE = resources.group('CUSTOM_NVIDIA_1G_10GB')
_WHOLE = resources.group('PGPU')
_PROFILE = resources.DeviceProfile('slice', (_SLICE,))
_FLAVOR = resources.Flavor('gpu.slice', 4, 8192, 0, True, (
    (resources.PROFILE_KEY, 'slice'),))
_REGISTERED = resources.RegisteredLimit('class:PGPU', 0)
_LIMIT = resources.Limit('class:PGPU', 'research', 8)
_ALL = (_PROFILE, _FLAVOR, _REGISTERED, _LIMIT)

_profiles = strategies.builds(
    resources.DeviceProfile, strategies.sampled_from('ab'),
    strategies.sampled_from(((_SLICE,), (_WHOLE,), (_SLICE, _WHOLE))),
    strategies.sampled_from(('', 'text')))
_flavors = strategies.builds(
    resources.Flavor, strategies.sampled_from('ab'),
    strategies.integers(1, 2), strategies.just(1), strategies.just(0),
    strategies.booleans(), strategies.sampled_from('ab').map(
        lambda name: ((resources.PROFILE_KEY, name),)),
    strategies.frozensets(strategies.sampled_from('pq')))
_registered = strategies.builds(
    resources.RegisteredLimit, strategies.sampled_from('ab'),
    strategies.integers(0, 1))
_limits = strategies.builds(
    resources.Limit, strategies.sampled_from('ab'),
    strategies.sampled_from('pq'), strategies.integers(0, 1))
_items = strategies.lists(
    strategies.one_of(_profiles, _flavors, _registered, _limits),
    unique_by=lambda item: item.key)
_present = strategies.lists(strategies.builds(
    resources.Existing, strategies.one_of(
        _profiles, _flavors, _registered, _limits), strategies.just('id'),
    strategies.booleans(),
    strategies.sampled_from(((), (), ('server x',)))),
    unique_by=lambda existing: existing.item.key)


def _by_key(*found):
    return {existing.item.key: existing for existing in found}


def _there(item, **kwargs):
    return resources.Existing(item, 'id', **kwargs)


def _actions(changes):
    return [(change.action, change.item.name) for change in changes]


def _after(present, changes):
    """The content of a cloud after the changes are carried out in order."""
    after = dict(present)
    for change in changes:
        if not change.acts:
            continue
        for need in change.wanted.needs if change.wanted else ():
            assert need in after, f'{change} before {need}'
        if change.action in (_DELETE, _REPLACE):
            assert change.existing.ours or change.wanted, change
            assert not change.existing.users, change
            del after[change.item.key]
        if change.wanted is not None:
            after[change.item.key] = _there(
                change.wanted,
                users=change.existing.users if change.existing else ())
    for existing in after.values():
        if existing.ours and existing.item.key not in present:
            assert all(need in after for need in existing.item.needs)
    return after


class PlanTest(base.BaseTestCase):

    def test_what_is_not_there_is_created_in_order(self):
        changes = plan.make(reversed(_ALL), {})
        self.assertEqual([(_CREATE, item.name) for item in _ALL],
                         _actions(changes))
        self.assertEqual(
            ['1x CUSTOM_NVIDIA_1G_10GB', '4 vCPU, 8192 MiB, 0 GiB, device '
             'profile slice', 'default: 0', 'value: 8'],
            [change.text for change in changes])

    def test_what_can_be_changed_is(self):
        changes = plan.make([
            _PROFILE, dataclasses.replace(_FLAVOR, projects=frozenset('p')),
            _REGISTERED, dataclasses.replace(_LIMIT, value=9)],
            _by_key(*(_there(item, users=('server x',)) for item in _ALL)))
        self.assertEqual(
            [('gpu.slice', 'projects: none -> p'),
             ('class:PGPU of project research', 'value: 8 -> 9')],
            [(change.item.name, change.text) for change in changes])
        self.assertEqual({_UPDATE}, {change.action for change in changes})

    def test_what_cannot_be_changed_is_replaced_unless_it_is_in_use(self):
        for wanted, text in (
                (dataclasses.replace(_PROFILE, groups=(_WHOLE,)),
                 'groups: 1x CUSTOM_NVIDIA_1G_10GB -> 1x PGPU'),
                (dataclasses.replace(_PROFILE, description='x'),
                 "description: '' -> 'x'")):
            (change,) = plan.make([wanted], _by_key(_there(_PROFILE)))
            self.assertEqual((_REPLACE, text), (change.action, change.text))
            (change,) = plan.make([wanted], _by_key(
                _there(_PROFILE, users=tuple('abcde'))))
            self.assertEqual(_REFUSE, change.action)
            self.assertIn('in use by a, b, c and 2 more', change.text)
        (change,) = plan.make(
            [_PROFILE, dataclasses.replace(_FLAVOR, vcpus=8)],
            _by_key(_there(_PROFILE), _there(_FLAVOR, users=('server x',))))
        self.assertEqual((_REFUSE, 'gpu.slice'),
                         (change.action, change.item.name))

    def test_what_others_have_made(self):
        foreign = _by_key(_there(_PROFILE, ours=False))
        self.assertEqual((), plan.make([_PROFILE], foreign))
        other = dataclasses.replace(_PROFILE, groups=(_WHOLE,))
        (change,) = plan.make([other], foreign)
        self.assertEqual(_REFUSE, change.action)
        self.assertIn('--adopt', change.text)
        for wanted in (_PROFILE, other):
            self.assertEqual([(_REPLACE, 'slice')], _actions(
                plan.make([wanted], foreign, adopt=True)))
        foreign = _by_key(_there(_PROFILE, ours=False, users=('x',)))
        self.assertEqual([(_KEEP, 'slice')], _actions(
            plan.make([_PROFILE], foreign, adopt=True)))
        self.assertEqual([(_REFUSE, 'slice')], _actions(
            plan.make([other], foreign, adopt=True)))
        self.assertEqual([(_UPDATE, 'class:PGPU')], _actions(plan.make(
            [_REGISTERED], _by_key(_there(_REGISTERED, ours=False)),
            adopt=True)))
        self.assertEqual((), plan.make([], foreign, prune=True))

    def test_a_default_changes_only_while_no_project_has_a_limit(self):
        wanted = dataclasses.replace(_REGISTERED, default=1)
        for there, action in ((), _UPDATE), ((_LIMIT,), _REFUSE):
            self.assertEqual([(action, 'class:PGPU')], _actions(plan.make(
                [wanted], _by_key(*map(_there, (_REGISTERED, *there))))))

    def test_what_is_not_wanted_any_more(self):
        present = _by_key(*map(_there, _ALL))
        self.assertEqual((), plan.make([], present))
        self.assertEqual({item.key for item in _ALL},
                         {item.key for item in plan.left_over([], present)})
        self.assertEqual((_LIMIT,), plan.left_over(
            [_PROFILE, _FLAVOR, _REGISTERED], present))
        self.assertEqual(
            [(_DELETE, item.name) for item in reversed(_ALL)],
            _actions(plan.make([], present, prune=True)))
        present = _by_key(_there(_PROFILE), _there(_FLAVOR, ours=False))
        (change,) = plan.make([], present, prune=True)
        self.assertEqual((_KEEP, 'needed by flavor gpu.slice'),
                         (change.action, change.text))
        present = _by_key(_there(_PROFILE), _there(_FLAVOR, users=('x',)))
        self.assertEqual([(_KEEP, 'gpu.slice'), (_KEEP, 'slice')], _actions(
            plan.make([], present, prune=True)))

    def test_what_something_needs(self):
        self.assertEqual([(_REFUSE, 'gpu.slice')],
                         _actions(plan.make([_FLAVOR], {})))
        self.assertEqual([(_CREATE, 'gpu.slice')], _actions(plan.make(
            [_FLAVOR], _by_key(_there(_PROFILE, ours=False)))))

    @hypothesis.settings(max_examples=scope.examples(400))
    @hypothesis.given(_items, _present, strategies.booleans(),
                      strategies.booleans())
    def test_once_it_is_done_nothing_is_left_to_do(self, wanted, present,
                                                   adopt, prune):
        before = _by_key(*present)
        changes = plan.make(wanted, before, adopt, prune)
        refused = {change.item.key for change in changes
                   if change.action is _REFUSE}
        after = _after(before, changes)
        for item in wanted:
            if item.key not in refused:
                self.assertEqual(item, after[item.key].item)
        for key, existing in before.items():
            if existing.users:
                self.assertIn(key, after)
            if not existing.ours and not adopt:
                self.assertEqual(existing, after[key])
        again = plan.make(wanted, after, adopt, prune)
        self.assertEqual([], [change for change in again if change.acts
                              and change.item.key not in refused])


class OfferTest(base.BaseTestCase):

    def test_what_no_gpu_offers(self):
        found = [samples.provider(total=7),
                 samples.provider('passthrough', total=1, traits=())]

        def said(*groups):
            return plan.unoffered(
                [resources.DeviceProfile('x', groups), _FLAVOR], found)

        self.assertEqual((), said(_SLICE, _WHOLE))
        self.assertEqual(
            ('device profile x: no GPU offers CUSTOM_NVIDIA_2G_20GB; there '
             'are CUSTOM_NVIDIA_1G_10GB, PGPU',),
            said(_SLICE, *[resources.group('CUSTOM_NVIDIA_2G_20GB')] * 2))
        model = frozenset({samples.MODEL})
        for group in (resources.group('PGPU', required=model),
                      resources.group('CUSTOM_NVIDIA_1G_10GB',
                                      forbidden=model),
                      resources.group('CUSTOM_NVIDIA_1G_10GB', 8)):
            (text,) = said(group)
            self.assertIn('meets the request', text)
        self.assertEqual((), said(resources.group(
            'CUSTOM_NVIDIA_1G_10GB', 7, required=model)))


class MarkTest(base.BaseTestCase):

    @hypothesis.given(strategies.text())
    def test_a_mark_can_be_taken_off_again(self, text):
        hypothesis.assume(not resources.unmarked(text)[1])
        self.assertEqual((text, True),
                         resources.unmarked(resources.marked(text)))
        self.assertEqual((text, False), resources.unmarked(text))
        self.assertEqual(('', False), resources.unmarked(None))


_ONE = 'CUSTOM_NVIDIA_1G_10GB'
_DEFAULT = resources.RegisteredLimit(f'class:{_ONE}', 2)
_OWN = resources.Limit(f'class:{_ONE}', 'p', 8)


def _existing(*items):
    return [resources.Existing(item, item.name) for item in items]


class ShowTest(base.BaseTestCase):

    def quotas(self, limits, usages, project='p'):
        return [(one.resource_class, one.limit, one.own, one.used, one.free)
                for one in quota.of_project(
                    project, _existing(*limits), usages)]

    def test_own_limit_is_before_default(self):
        self.assertEqual([(_ONE, 8, True, 3, 5)],
                         self.quotas([_DEFAULT, _OWN], {_ONE: 3}))
        self.assertEqual([(_ONE, 2, False, 3, 0)], self.quotas(
            [_DEFAULT, _OWN], {_ONE: 3}, project='other'))
