# SPDX-License-Identifier: Apache-2.0

import dataclasses
import functools

from cyborg.api import app as cyborg_app

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import cordons
from cyborg_gpu_driver.cloud import fleet
from cyborg_gpu_driver.cloud import moves
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import moves as partition_moves
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import explain_case
from cyborg_gpu_driver.tests.functional import test_disable
from cyborg_gpu_driver.tests.unit.cloud import services

_NEW = cordon.Cordon(cordon.Source.CYBORG, 1795000000.0, 'op',
                     cordon.FOR_A_MOVE)


class ApplyTest(test_disable.DisableCase):
    """Each of two GPUs has a server on one half; then a 7g needs room."""

    overrides = {
        'gpu': {'policies': 'both'},
        'gpu_policy:both': {
            'mode': 'mig', 'profiles': '1g.10gb, 3g.40gb, 7g.80gb',
            'match_address': f'{test_disable.FIRST}, {test_disable.SECOND}'}}

    def setUp(self):
        super().setUp()
        self.compute = explain_case.NovaThatShelves(self.cloud)
        self.operator = self.useFixture(services.Services({
            'accelerator': cyborg_app.load_app(),
            'placement': services.forwarded(
                self.cloud.placement.url, 'admin'),
            'compute': self.compute})).cloud
        self.half = self.profile(explain_case.THIRD)
        booted = [self.compute.boot(self.half, f'server-{number}',
                                    gpu_movable='true')
                  for number in range(4)]
        self.kept = {server.providers: server for server in booted}
        for server in booted:
            if server not in self.kept.values():
                self.cloud.unbind(server)
                del self.compute.servers[server.uuid]
        self.whole = self.profile('CUSTOM_NVIDIA_7G_80GB')
        self.report()
        self.look = functools.partial(fleet.Snapshot, self.operator)
        self.now = 0.0
        self.said = []

    def sleep(self, seconds):
        """The agent reports while the command waits."""
        self.now += seconds
        self.report()

    def plan(self):
        found = self.look()
        asked = found.asked(None, self.whole)[self.whole]
        return asked, partition_moves.find(
            found.fleet.gpus, found.fleet.want(asked)).plan

    def run_plan(self):
        asked, plan = self.plan()
        self.assertEqual(1, len(plan.moves))
        return plan, moves.Applying(
            self.operator, asked, self.look, _NEW, 12.0, self.said.append,
            lambda: self.now, self.sleep)

    def closed(self):
        return {gpu for gpu in (test_disable.FIRST, test_disable.SECOND)
                if self.is_closed(gpu) == {True}}

    def test_it_makes_room(self):
        plan, applying = self.run_plan()
        found = applying.run(plan)
        self.assertEqual((plan.gpu, plan.moves), (found.gpu, found.moves))
        self.assertEqual(set(), self.closed())
        self.cloud.bind(self.whole)
        self.assertEqual({'ACTIVE'}, {
            server['status'] for server in self.compute.servers.values()})

    def test_a_server_that_cannot_move_comes_back(self):
        plan, applying = self.run_plan()
        # Another server takes the only place to which the server could move,
        # while the server's GPU is closed already.
        sleep, taken = self.sleep, []

        def take(seconds):
            sleep(seconds)
            if self.closed() and not taken:
                taken.append(self.compute.boot(self.half, 'late'))

        applying._sleep = take
        error = self.assertRaises(
            exception.CloudError, applying.run, plan)
        self.assertTrue(taken)
        self.assertIn('done before that: nothing', str(error))
        self.assertIn(plan.moves[0].server, str(error))
        self.assertEqual(set(), self.closed())
        self.assertEqual({'ACTIVE'}, {
            server['status'] for server in self.compute.servers.values()})

    @scope.only_in_all
    def test_an_operator_who_cordons_the_gpu_meanwhile(self):
        plan, applying = self.run_plan()
        origin = plan.moves[0].origin
        sleep = self.sleep

        def cordoned(seconds):
            sleep(seconds)
            for gpu in cordons.find(self.operator, origin.host, origin.gpu):
                known = cordon.of(gpu.cordons, cordon.Source.CYBORG)
                if known is not None and known.reason == _NEW.reason:
                    cordons.close(self.operator, gpu, dataclasses.replace(
                        _NEW, reason='a fan'))

        applying._sleep = cordoned
        error = self.assertRaises(exception.CloudError, applying.run, plan)
        self.assertIn('no longer makes room', str(error))
        self.assertEqual(1, str(error).count('cloud here'))
        self.report()
        self.assertEqual({origin.gpu}, self.closed())
        (known,) = cordons.find(self.operator, *origin)[0].cordons
        self.assertEqual('a fan', known.reason)
        self.assertIn('stays cordoned', ' '.join(self.said))
