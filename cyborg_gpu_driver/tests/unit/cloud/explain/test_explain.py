# SPDX-License-Identifier: Apache-2.0

"""Each reason why a request cannot be scheduled, and its text."""

import dataclasses

import testscenarios
from oslotest import base

from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import explain
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.tests.unit.cloud.explain import explain_clouds as clouds

_UUID = 'c5b0a1d2-34f6-4c7e-9b8a-001122334455'
_HOLD = ('s1',)


def _named(name, known_names=('gpus',)):
    """A request for a flavor that has this device profile name."""
    specs = {request.PROFILE_KEY: name} if name else {}
    flavor = request.Flavor('small', 1, 512, extra_specs=specs)
    named, findings = request.profile_of(flavor, known_names)
    return dataclasses.replace(request.make(flavor, named, ()),
                               findings=findings)


def _server(fault='', **changes):
    return facts.Server('s1', 'trainer', fault=fault, **changes)


def _service(**changes):
    return {'uuid of compute1': facts.Service('compute1', **{
        'zone': 'nova', **changes})}


_PLAIN = clouds.profile()
_TWO = clouds.profile(clouds.wish(), clouds.wish())
_NONE_FREE = clouds.inventory(4, reserved=4)
_BOTH = (clouds.node(clouds.SLICE, _NONE_FREE),
         clouds.node(clouds.THIRD, clouds.inventory(2, used=1),
                     holders=_HOLD))

# For each reason: a request, the facts, and words of the text.
_REFUSED = {
    'PROFILE_UNKNOWN': (_named('gpuss'), clouds.known(), 'mean gpus?'),
    'PROFILE_BY_UUID': (_named(_UUID), clouds.known(), 'UUID'),
    'NO_PROFILE': (_named(None), clouds.known(), 'gets no GPU'),
    'GROUP_EMPTY': (clouds.profile({'trait:CUSTOM_A': 'required'}),
                    clouds.known(), 'group 0'),
    'CLASS_IGNORED': (clouds.profile({'resources:GPU': '1'}),
                      clouds.known(), 'ignores GPU'),
    'GROUP_POLICY': (clouds.flavor(extra_specs={
        'resources1:PGPU': '1', 'resources2:PGPU': '1'}), clouds.known(),
        'group_policy'),
    'CLASS_NOWHERE': (clouds.profile(clouds.wish('CUSTOM_NVIDIA_1G_1OGB')),
                      clouds.known(), f'mean {clouds.SLICE}?'),
    'TRAIT_UNKNOWN': (clouds.profile(clouds.wish(required=['CUSTOM_X'])),
                      clouds.known(unknown_traits=frozenset({'CUSTOM_X'})),
                      'does not know trait CUSTOM_X'),
    'TRAIT_NOWHERE': (clouds.profile(clouds.wish(required=[clouds.H100])),
                      clouds.known(), f'mean {clouds.A100}?'),
    'REFUSED': (_PLAIN, clouds.known(answer=facts.Answer(
        refusal='No such thing')), 'No such thing'),
    'HOST_DISABLED': (_PLAIN, clouds.known(services=_service(
        enabled=False, reason='repairs')), 'repairs'),
    'SERVICE_DOWN': (_PLAIN, clouds.known(services=_service(up=False)),
                     'compute1 is down'),
    'NO_COMPUTE': (_PLAIN, clouds.known(services={}),
                   'no compute node for provider compute1'),
    'ZONE': (_PLAIN, clouds.known(server=_server(zone='west')), 'west'),
    'STALE_PROVIDER': (_PLAIN, clouds.known(deployables={}),
                       'no deployable'),
    'CYBORG_NO_DEVICES': (_PLAIN, clouds.known(devices=(
        clouds.device('d', 'compute1.example.org'),)), 'no device on host'),
    'HANDLES_TAKEN': (_PLAIN, clouds.known(
        deployables={clouds.node().uuid: 1}, arqs=(
            cyborg.AcceleratorRequest(
                uuid='a1', state='Bound', instance_uuid='gone',
                device_rp_uuid=clouds.node().uuid),)), 'a1 (Bound)'),
}
# Placement has no candidate.
_NO_CANDIDATE = {
    'NO_ACCELERATORS_TRAIT': (_PLAIN, clouds.known(clouds.tree(
        clouds.node(), traits=())), 'virt driver'),
    'ROOT_TRAIT': (dataclasses.replace(
        _PLAIN, root_required=frozenset({'HW_X'})), clouds.known(),
        'no trait HW_X'),
    'HOST_RESOURCES': (clouds.flavor(vcpus=9), clouds.known(),
                       'VCPU: 9 requested, 8 free'),
    'HOST_TRAIT': (clouds.flavor(extra_specs={
        f'trait:{clouds.A100}': 'required'}), clouds.known(),
        f'lacks the traits {clouds.A100}'),
    'CLASS_ELSEWHERE': (clouds.profile(clouds.wish('PGPU')), clouds.known(
        clouds.tree(clouds.node()), clouds.tree(
            clouds.node('PGPU', clouds.inventory(1, used=1), host='c2'),
            name='c2')), f'has no PGPU, only {clouds.SLICE}'),
    'NOT_REPORTED': (_PLAIN, clouds.known(clouds.tree(), devices=()),
                     'neither Cyborg nor Placement'),
    'GROUPS_TOGETHER': (_TWO, clouds.known(clouds.tree(clouds.node(
        has=clouds.inventory(1)))), f'group 0 (1 {clouds.SLICE}), group 1'),
    'COUNT_SPLIT': (clouds.profile(clouds.wish(count=2)), clouds.known(
        clouds.tree(clouds.node(has=clouds.inventory(2, used=1)),
                    clouds.node(has=clouds.inventory(2, used=1),
                                gpu=clouds.OTHER_GPU))),
                    f'has 2 {clouds.SLICE} free'),
    'GROUP_MIXED': (clouds.profile({
        f'resources:{clouds.SLICE}': '1', f'resources:{clouds.THIRD}': '1'}),
        clouds.known(clouds.tree(clouds.node(), clouds.node(clouds.THIRD))),
        'this one has no'),
    'TRAIT_MISSING': (clouds.profile(clouds.wish(required=[clouds.H100])),
                      clouds.known(), f'has {clouds.A100}'),
    'TRAIT_FORBIDDEN': (clouds.profile(clouds.wish(
        forbidden=[clouds.A100])), clouds.known(), clouds.A100),
    'TOO_MANY': (clouds.profile(clouds.wish(count=5)), clouds.known(),
                 'has at most 4'),
    'UNIT': (clouds.profile(clouds.wish(count=3)), clouds.known(clouds.tree(
        clouds.node(has=clouds.inventory(4, step_size=2)))), 'steps of 2'),
    'USED': (_PLAIN, clouds.known(clouds.tree(clouds.node(
        has=clouds.inventory(2, used=2), holders=('s1', 's2')))),
        'by desktop, trainer'),
    'RESERVED_SIBLING': (_PLAIN, clouds.known(clouds.tree(*_BOTH)),
                         'trainer (using 3g.40gb)'),
    'RESERVED_FRAGMENTED': (_PLAIN, clouds.known(clouds.tree(clouds.node(
        has=clouds.inventory(4, used=1, reserved=3), holders=_HOLD))),
        'next to trainer'),
    'RESERVED_UNHEALTHY': (_PLAIN, clouds.known(clouds.tree(clouds.node(
        has=_NONE_FREE, traits=['CUSTOM_GPU_UNHEALTHY_XID_79']))), 'XID_79'),
    'RESERVED_WITHDRAWN': (_PLAIN, clouds.known(clouds.tree(clouds.node(
        has=_NONE_FREE, traits=['CUSTOM_GPU_WITHDRAWN']))),
        'its policy has changed'),
    'RESERVED_CORDONED': (_PLAIN, clouds.known(
        clouds.tree(clouds.node(has=_NONE_FREE)), devices=(clouds.device(
            'd', 'compute1', gpu=clouds.node().place.gpu, told=(
                cordon.Cordon(cordon.Source.OPERATOR, 5.0, 'root',
                              'a fan'),)),)), 'root since 1970'),
    'RESERVED_UNUSED': (_PLAIN, clouds.known(clouds.tree(clouds.node(
        has=_NONE_FREE))), 'no server uses the GPU'),
}
# Hints do not prevent a request from being scheduled.
_HINTS = {
    'GPU_ISOLATED': (_PLAIN, clouds.known(clouds.tree(
        clouds.node(traits=['CUSTOM_GPU_ISOLATION_PROJECT']),
        clouds.node(clouds.THIRD, clouds.inventory(2, used=1),
                    holders=_HOLD))), 'only, and has trainer'),
    'DEVICE_DISABLED': (_PLAIN, clouds.known(devices=(
        clouds.device('d1', status='maintaining'),)), 'd1'),
    'SAME_GPU': (clouds.profile(clouds.wish(), clouds.wish(clouds.THIRD)),
                 clouds.known(clouds.tree(
                     clouds.node(), clouds.node(clouds.THIRD))), 'one GPU'),
    'GUEST_ADDRESSES': (
        clouds.flavor(4 * [clouds.wish('PGPU')], ram=262144), clouds.known(
            clouds.tree(clouds.node('PGPU', traits=[
                'CUSTOM_GPU_KIND_PASSTHROUGH', 'CUSTOM_GPU_MEMORY_94GB']))),
        'has room for 3'),
    'BIND_FAILED': (_PLAIN, clouds.known(server=_server(
        'Failed to bind accelerator requests: x')), 'trainer'),
    'SERVICE_TOKEN': (_PLAIN, clouds.known(server=_server(
        'Failed to bind accelerator requests: 403 Forbidden')), '403'),
    'HOST_MISMATCH': (_PLAIN, clouds.known(server=_server(
        'x', host='compute1.example.org')), 'Cyborg knows only compute1'),
    'NO_NETWORK': (_PLAIN, clouds.known(server=_server(
        'Build of instance aborted: Failure getting accelerator requests.')),
        'without any network'),
    'NO_VALID_HOST': (_PLAIN, clouds.known(server=_server(
        'No valid host was found. ')), 'trainer'),
    'SERVER_FAULT': (_PLAIN, clouds.known(server=_server('disk on fire')),
                     'disk on fire'),
}


def _all(verdict):
    yield from verdict.findings
    for host in verdict.hosts:
        yield from host.findings
        for candidate in host.candidates:
            yield from candidate.findings


class ReasonTest(testscenarios.TestWithScenarios, base.BaseTestCase):

    scenarios = [(name, {'name': name, 'case': case, 'refused': refused})
                 for cases, refused in (
                     (_REFUSED, True), (_NO_CANDIDATE, True), (_HINTS, False))
                 for name, case in cases.items()]

    def test_it_is_said(self):
        wanted, known, words = self.case
        if self.name in _NO_CANDIDATE:
            known = dataclasses.replace(known, answer=facts.Answer())
        verdict = explain.verdict(wanted, known)
        found = {item.reason.name: item for item in _all(verdict)}
        self.assertIn(self.name, found)
        self.assertIn(words, found[self.name].text)
        self.assertTrue(found[self.name].remedy)
        self.assertEqual(not self.refused, verdict.schedulable)
        self.assertEqual(not self.refused,
                         verdict.sentence.startswith('Schedulable'))


class CompletenessTest(base.BaseTestCase):

    def test_every_reason_has_a_case(self):
        self.assertEqual({reason.name for reason in request.Reason},
                         {*_REFUSED, *_NO_CANDIDATE, *_HINTS})


class VerdictTest(base.BaseTestCase):

    def verdict(self, wanted, *trees, **changes):
        return explain.verdict(wanted, clouds.known(*trees, **changes))

    def test_the_nearest_comes_first(self):
        busy = clouds.tree(clouds.node(
            has=clouds.inventory(1, used=1), host='c', holders=_HOLD),
            name='c')
        other = clouds.tree(clouds.node(host='b', traits=[clouds.H100]),
                            name='b')
        without = clouds.tree(clouds.node('PGPU', host='a'), name='a')
        wanted = clouds.profile(clouds.wish(required=[clouds.A100]))
        verdict = self.verdict(wanted, without, other, busy,
                               answer=facts.Answer())
        self.assertEqual(['c', 'b', 'a'],
                         [host.name for host in verdict.hosts])
        self.assertIn('nearest is c: 1 of 1', verdict.sentence)
        free = clouds.tree(clouds.node(host='d'), name='d')
        self.assertEqual('d', self.verdict(
            wanted, busy, free, answer=facts.Answer({
                free.root.uuid: (frozenset(),)})).hosts[0].name)

    def test_all_that_is_missing_is_said(self):
        verdict = self.verdict(
            clouds.profile(clouds.wish(required=[clouds.H100])),
            clouds.tree(clouds.node(has=clouds.inventory(
                4, used=4, reserved=1), holders=_HOLD)))
        (candidate,) = verdict.hosts[0].candidates
        self.assertEqual(
            ['TRAIT_MISSING', 'USED'],
            [item.reason.name for item in candidate.findings])

    def test_placement_has_the_last_word(self):
        full = clouds.tree(clouds.node(has=_NONE_FREE))
        self.assertTrue(self.verdict(clouds.profile(), full).schedulable)
        verdict = self.verdict(clouds.profile(), answer=facts.Answer())
        self.assertFalse(verdict.schedulable)
        self.assertIn('but not all of them together', verdict.sentence)

    def test_a_bind_that_fails_on_one_gpu_only(self):
        good, bad = clouds.node(), clouds.node(gpu=clouds.OTHER_GPU)
        tree = clouds.tree(good, bad)
        for options, accepted in (([bad], False), ([bad, good], True)):
            self.assertEqual(accepted, self.verdict(
                clouds.profile(), tree, deployables={good.uuid: 7},
                answer=facts.Answer({tree.root.uuid: [
                    frozenset({one.uuid}) for one in options]})).schedulable)

    def test_a_host_that_would_be_chosen_and_fail_is_counted(self):
        bad = clouds.tree(clouds.node(host='bad'), name='bad')
        good = clouds.tree(clouds.node(host='good'), name='good')
        verdict = self.verdict(
            clouds.profile(), bad, good,
            deployables={good.below[0].uuid: 7})
        self.assertEqual('Schedulable: 1 of 2 hosts can take it now; 1 more '
                         'would be selected, but the server would fail '
                         'there.', verdict.sentence)

    def test_a_host_that_is_disabled_in_placement_already(self):
        verdict = self.verdict(clouds.flavor(), clouds.tree(
            clouds.node(), traits=['COMPUTE_ACCELERATORS',
                                   'COMPUTE_STATUS_DISABLED']),
            services=_service(enabled=False, reason='repairs'),
            answer=facts.Answer())
        self.assertEqual(
            [('HOST_DISABLED', 'compute1 is disabled '
              '(COMPUTE_STATUS_DISABLED): repairs')],
            [(item.reason.name, item.text) for item in _all(verdict)])


class QueryTest(base.BaseTestCase):

    def test_the_question(self):
        wanted = clouds.flavor(
            (clouds.wish(required=[clouds.A100]),
             clouds.wish('PGPU', 2, forbidden=[clouds.H100])), disk=10)
        self.assertEqual({
            'limit': '1000', 'group_policy': 'none', 'in_tree': 'root',
            'root_required': 'COMPUTE_ACCELERATORS,!COMPUTE_STATUS_DISABLED',
            'resources': 'DISK_GB:10,MEMORY_MB:512,VCPU:1',
            'resourcesdevice_profile_0': f'{clouds.SLICE}:1',
            'requireddevice_profile_0': clouds.A100,
            'resourcesdevice_profile_1': 'PGPU:2',
            'requireddevice_profile_1': f'!{clouds.H100}',
        }, wanted.query('root'))
        self.assertEqual({'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 10,
                          clouds.SLICE: 1, 'PGPU': 2}, wanted.totals)

    def test_a_profile_alone_is_kept_to_a_host_group_by_group(self):
        query = clouds.profile(clouds.wish()).query('root')
        self.assertEqual('root', query['in_treedevice_profile_0'])
        self.assertNotIn('in_tree', query)

    def test_extra_specs_that_are_not_considered_are_named(self):
        flavor = request.Flavor('f', 1, extra_specs={
            'hw:tpm_version': '2.0', 'hw:cpu_policy': 'mixed'})
        self.assertEqual(('hw:cpu_policy', 'hw:tpm_version'),
                         request.make(flavor, None, ()).ignored)
