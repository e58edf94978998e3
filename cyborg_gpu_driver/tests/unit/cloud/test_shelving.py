# SPDX-License-Identifier: Apache-2.0

"""Shelving and unshelving a server to move it off its GPU."""

import json

from openstack.compute.v2 import server as sdk_server
from oslotest import base

from cyborg_gpu_driver.cloud import moves
from cyborg_gpu_driver.tests.unit.cloud import services

Step = moves.Step
_PLACED = 'compute1'


class FollowingTest(base.BaseTestCase):

    def next(self, status, *sent, busy=False, host=_PLACED, unshelve=True,
             was_away=False):
        return moves.following(sdk_server.Server(
            status=status, task_state='x' if busy else None,
            compute_host=host), sent, unshelve, was_away)

    def test_what_follows(self):
        gone = {'host': None}
        for step, status, sent, more in (
                (Step.SHELVE, 'ACTIVE', (), {}),
                (Step.WAIT, 'ACTIVE', (Step.SHELVE,), {'busy': True}),
                (Step.STUCK, 'ACTIVE', (Step.SHELVE,), {}),
                # Nova has not cleared the host yet.
                (Step.WAIT, 'SHELVED_OFFLOADED', (Step.SHELVE,), {}),
                (Step.DONE, 'SHELVED_OFFLOADED', (Step.SHELVE,),
                 {**gone, 'unshelve': False}),
                (Step.UNSHELVE, 'SHELVED_OFFLOADED', (Step.SHELVE,), gone),
                (Step.STUCK, 'SHELVED_OFFLOADED',
                 (Step.SHELVE, Step.UNSHELVE), gone),
                (Step.DONE, 'ACTIVE', (Step.SHELVE, Step.UNSHELVE), {}),
                # Somebody else has unshelved it.
                (Step.DONE, 'ACTIVE', (Step.SHELVE,), {'was_away': True}),
                (Step.STUCK, 'ACTIVE', (Step.SHELVE,),
                 {'was_away': True, 'unshelve': False}),
                *((Step.STUCK, status, (), {})
                  for status in ('ERROR', 'BUILD', 'RESCUE')),
                *((Step.SHELVE, status, (), {})
                  for status in ('SHUTOFF', 'PAUSED', 'SUSPENDED'))):
            self.assertEqual(step, self.next(status, *sent, **more))


class _Nova:
    """A Nova with one server.

    :param faults: error statuses, each of which answers one request.
    """

    def __init__(self, faults=(), task=None):
        self.server = {'status': 'ACTIVE', 'OS-EXT-STS:task_state': task,
                       'OS-EXT-SRV-ATTR:host': _PLACED}
        self.faults = list(faults)
        self.actions = []

    def __call__(self, environ, start_response):
        post = environ['REQUEST_METHOD'] == 'POST'
        if environ['PATH_INFO'].startswith('/v2.1/servers/') and self.faults:
            wanted, status = self.faults[0]
            if wanted == environ['REQUEST_METHOD']:
                del self.faults[0]
                start_response(f'{status} X', [])
                return [b'']
        if not post:
            return services.documents({'/v2.1/servers/a': {
                'server': self.server}}, services.NOVA)(
                    environ, start_response)
        (action,) = json.loads(environ['wsgi.input'].read(
            int(environ['CONTENT_LENGTH'])))
        self.actions.append(action)
        self.server.update({
            'shelve': {'status': 'SHELVED'},
            'shelveOffload': {'status': 'SHELVED_OFFLOADED',
                              'OS-EXT-SRV-ATTR:host': None},
            'unshelve': {'status': 'ACTIVE',
                         'OS-EXT-SRV-ATTR:host': 'other'}}[action])
        start_response('202 Accepted', [])
        return [b'']


class FaultTest(base.BaseTestCase):

    def move(self, nova, servers='a', seconds=60.0, sleep=None):
        now = [0.0]

        def passing(amount):
            now[0] += amount
            if sleep:
                sleep()

        self.said = []
        cloud = self.useFixture(services.Services({'compute': nova})).cloud
        return moves.shelve(cloud, servers, servers, seconds,
                            self.said.append, lambda: now[0], passing)

    def test_each_failure_has_its_reason(self):
        found = self.move(services.documents({
            f'/v2.1/servers/{uuid}': {'server': {
                'status': status, 'OS-EXT-STS:task_state': None,
                'OS-EXT-SRV-ATTR:host': _PLACED, 'fault': fault}}
            for uuid, status, fault in (
                ('a', 'ERROR', {'message': 'disk on fire'}),
                # The fake Nova refuses the action with 404.
                ('b', 'ACTIVE', {}))}, services.NOVA), 'abc')
        self.assertEqual('its status is ERROR: disk on fire', found['a'])
        self.assertIn('404', found['b'])
        # This server was deleted meanwhile.
        self.assertNotIn('c', found)

    def test_a_nova_that_does_not_answer_for_a_while(self):
        for faults in ([('GET', 503)] * 3, [('POST', 500)] * 2,
                       [('POST', 503), ('GET', 502), ('POST', 500)],
                       # Nova does something else with the server.
                       [('POST', 409)]):
            nova = _Nova(faults)
            self.assertEqual({}, self.move(nova))
            self.assertEqual(['shelve', 'shelveOffload', 'unshelve'],
                             nova.actions)
        nova = _Nova([('POST', 500)] * 99)
        nova.server.update({'status': 'SHELVED_OFFLOADED',
                            'OS-EXT-SRV-ATTR:host': None})
        self.assertIn('500', self.move(nova)['a'])
        nova = _Nova([('GET', 503)] * 99)
        self.assertRegex(self.move(nova)['a'],
                         'not finished after 60 s: .*503')

    def test_a_server_that_is_left_half_way(self):
        nova = _Nova()
        found = self.move(nova, seconds=9.0, sleep=lambda: nova.server.update(
            {'OS-EXT-STS:task_state': 'shelving'}))
        self.assertEqual(
            'not finished after 9 s: it may stay shelved; to start it: '
            'openstack server unshelve a', found['a'])

    def test_an_operator_who_interrupts(self):
        def interrupt():
            raise KeyboardInterrupt

        nova = _Nova()
        self.assertRaises(KeyboardInterrupt, self.move, nova,
                          sleep=interrupt)
        self.assertIn('openstack server unshelve a', self.said[-1])
        self.assertRaises(KeyboardInterrupt, self.move, _Nova(task='x'),
                          sleep=interrupt)
        self.assertEqual([], self.said)
