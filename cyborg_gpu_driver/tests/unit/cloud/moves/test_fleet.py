# SPDX-License-Identifier: Apache-2.0

from openstack.compute.v2 import server as sdk_server
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import fleet
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.partition import moves
from cyborg_gpu_driver.tests.unit.cloud import samples
from cyborg_gpu_driver.tests.unit.cloud.explain import explain_clouds as clouds

ONE, OTHER = '0000:07:00.0', '0000:0f:00.0'
SLICE = resources.group('CUSTOM_NVIDIA_1G_10GB')
HALF = resources.group('CUSTOM_NVIDIA_3G_40GB')
WHOLE = resources.group('CUSTOM_NVIDIA_7G_80GB')
HERE, THERE = fleet.Place('compute1', ONE), fleet.Place('compute1', OTHER)


def gpu(address, small=(0, 7), half=(0, 2), whole=(0, 1), **kwargs):
    """The providers of a GPU, with used and free amount of each profile."""
    return [samples.provider(
        label, address, total=total, used=used,
        reserved=total - used - free, **kwargs)
        for label, total, (used, free) in (
            ('1g.10gb', 7, small), ('3g.40gb', 2, half),
            ('7g.80gb', 1, whole))]


def passthrough(address, used, traits=()):
    return [samples.provider('passthrough', address, total=1, used=used,
                             traits=traits)]


def request(server, provider, profile, **kwargs):
    return {'uuid': f'arq-{server}', 'state': 'Bound',
            'instance_uuid': server, 'device_rp_uuid': provider.uuid,
            'device_profile_name': profile, **kwargs}


def server(uuid, status='ACTIVE', task=None, movable='true'):
    return sdk_server.Server(
        id=uuid, name=uuid, status=status, task_state=task,
        metadata={} if movable is None else {'gpu_movable': movable})


def build(providers, requests=(), servers=(), profiles=(), usable=True,
          devices=(), **kwargs):
    found = hosts.build(
        providers, {'root-compute1': 'compute1'} if usable else {}, (),
        {}, {(one.hostname, one.gpu): one for one in devices})
    return fleet.Fleet(
        found, requests, {one.id: one for one in servers},
        {'slice': (SLICE,), 'half': (HALF,), **dict(profiles)}, **kwargs)


class FleetTest(base.BaseTestCase):

    def mobility(self, *servers, profiles=(), more=(), **kwargs):
        providers = gpu(ONE, small=(1, 6), half=(0, 1), whole=(0, 0))
        found = build(providers, [
            request('s', providers[0], 'slice'), *more], servers, profiles,
            **kwargs)
        holder, = found.gpus[0].holders
        return holder.mobility

    def test_which_servers_can_go(self):
        fixed, movable = moves.Mobility.FIXED, moves.Mobility.MOVABLE
        self.assertEqual(movable, self.mobility(server('s')))
        self.assertEqual(movable, self.mobility(server('s', movable='True')))
        self.assertEqual(fixed, self.mobility(server('s', movable=None)))
        self.assertEqual(fixed, self.mobility(server('s', movable='no')))
        self.assertEqual(movable, self.mobility(
            server('s', movable=None), anyone=True))
        self.assertEqual(fixed, self.mobility(anyone=True))
        self.assertEqual(fixed, self.mobility(server('s', 'SHUTOFF')))
        self.assertEqual(fixed, self.mobility(
            server('s', task='rebuilding')))
        self.assertEqual(moves.Mobility.IDLE, self.mobility(
            server('s', 'SHELVED', movable=None)))

    def test_a_device_profile_that_is_gone_or_asks_for_more(self):
        for groups in (), (resources.group('CUSTOM_NVIDIA_1G_10GB', 2),), (
                SLICE, SLICE), (HALF,):
            self.assertEqual(moves.Mobility.FIXED, self.mobility(
                server('s'), profiles={'slice': groups}))

    def test_a_cordoned_gpu_is_left_out(self):
        one, other = gpu(ONE), gpu(OTHER)
        found = build([*one, *other], devices=[
            clouds.device('d', 'compute1', gpu=ONE),
            clouds.device('e', 'compute1', gpu=OTHER, status='maintaining')])
        self.assertEqual([HERE], [item.name for item in found.gpus])

    def test_a_plan(self):
        one = gpu(ONE, small=(1, 6), half=(0, 1), whole=(0, 0))
        other = gpu(OTHER, small=(0, 3), half=(1, 1), whole=(0, 0))
        found = build([*one, *other], [
            request('s', one[0], 'slice'), request('t', other[1], 'half')],
            [server('s'), server('t', movable=None)])
        answer = moves.find(found.gpus, found.want(WHOLE))
        self.assertEqual(moves.Plan(HERE, (), (
            moves.Move('s', '1g.10gb', HERE, THERE),), True), answer.plan)

    def test_traits_that_a_moved_server_needs(self):
        one = gpu(ONE, small=(1, 6), half=(0, 1), whole=(0, 0))
        other = gpu(OTHER, traits=['CUSTOM_OTHER'])
        profiles = {'slice': (resources.group(
            'CUSTOM_NVIDIA_1G_10GB', forbidden=frozenset(
                {'CUSTOM_OTHER'})),)}
        found = build([*one, *other], [request('s', one[0], 'slice')],
                      [server('s')], profiles)
        wanted = found.want(resources.group(
            'CUSTOM_NVIDIA_7G_80GB', required=frozenset({samples.MODEL})))
        self.assertEqual(frozenset({HERE}), wanted.gpus)
        self.assertIsNone(moves.find(found.gpus, wanted).plan)

    def test_whole_gpus(self):
        one, = passthrough(ONE, 1, ['CUSTOM_NEW'])
        other, = passthrough(OTHER, 0)
        found = build(
            [one, other], [request('s', one, 'any')], [server('s')],
            {'any': (resources.group('PGPU'),)})
        answer = moves.find(found.gpus, found.want(resources.group(
            'PGPU', required=frozenset({'CUSTOM_NEW'}))))
        self.assertEqual(moves.Plan(HERE, (), (
            moves.Move('s', 'passthrough', HERE, THERE),), True),
            answer.plan)

    def test_what_no_grid_explains_counts_as_far_as_it_is_free(self):
        found = build(gpu(ONE, small=(0, 2), half=(0, 0), whole=(0, 0)))
        wants = [found.want(one) for one in (SLICE, HALF)]
        self.assertEqual(
            [HERE, None],
            [plan and plan.gpu for plan in (
                moves.find(found.gpus, want).plan for want in wants)])

    def test_hosts_that_nova_does_not_use(self):
        found = build(gpu(ONE), usable=False)
        self.assertEqual((), found.gpus)
        self.assertIsNone(found.want(SLICE))

    def test_a_profile_has_to_ask_for_one_accelerator(self):
        self.assertEqual(SLICE, fleet.group((SLICE,), 'slice'))
        for groups in (), (SLICE, SLICE), (
                resources.group('CUSTOM_NVIDIA_1G_10GB', 2),):
            error = self.assertRaises(
                exception.InvalidValue, fleet.group, groups, 'pair')
            self.assertIn('pair', str(error))
