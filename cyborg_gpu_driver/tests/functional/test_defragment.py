# SPDX-License-Identifier: Apache-2.0

from cyborg_gpu_driver.cloud import fleet
from cyborg_gpu_driver.osc import defragment
from cyborg_gpu_driver.tests.functional import explain_case


class DefragmentTest(explain_case.ExplainCase):
    """Each of two GPUs has a server on one half, so no 7g fits anywhere."""

    overrides = {'gpu': {'policies': 'slices'},
                 'gpu_policy:slices': {
                     'mode': 'mig', 'profiles': '1g.10gb,3g.40gb,7g.80gb'}}

    def setUp(self):
        super().setUp()
        third = self.profile(explain_case.THIRD)
        servers = [self.boot(third, f'server-{number}')
                   for number in range(4)]
        self.kept = {server.providers: server for server in servers}
        for server in servers:
            if server not in self.kept.values():
                self.cloud.unbind(server)
                del self.compute.servers[server.uuid]
        self.whole = self.profile('CUSTOM_NVIDIA_7G_80GB')
        self.report()

    def rows(self, *arguments, code=0):
        return self.openstack.rows(
            defragment.Defragment, '--plan', '--device-profile', self.whole,
            *arguments, code=code)

    def test_a_move_makes_room(self):
        server = next(iter(self.kept.values()))
        self.compute.servers[server.uuid]['metadata'] = {
            fleet.CONSENT: 'true'}
        self.explain('--device-profile', self.whole, code=1)
        move, room = self.rows()
        self.assertEqual(
            ('move', server.uuid, True),
            (move['Action'], move['Server ID'], move['Certain']))
        self.assertEqual(('room', move['From']),
                         (room['Action'], room['To']))
        self.assertNotEqual(move['From'], move['To'])
        # Without the server, room exists where the plan says.
        self.cloud.unbind(server)
        self.report()
        del self.compute.servers[server.uuid]
        there, = self.rows()
        self.assertEqual(('room', room['To']), (there['Action'], there['To']))
        self.explain('--device-profile', self.whole, code=0)

    def test_no_server_moves_without_consent(self):
        found, = self.rows(code=defragment.NO_PLAN)
        self.assertEqual('none', found['Action'])
        _, errors = self.openstack.run(
            defragment.Defragment, '--apply', '--ignore-consent',
            '--device-profile', self.whole, answer='n', code=1)
        self.assertIn('loses its memory', errors)
        self.assertIn('Nothing was changed', errors)
        self.assertEqual(['move', 'room'], [
            row['Action'] for row in self.rows('--ignore-consent')])
        table, _ = self.openstack.run(
            defragment.Defragment, '--plan', '--ignore-consent',
            '--device-profile', self.whole)
        self.assertGreaterEqual(80, max(map(len, table.splitlines())))
        found, = self.rows('--ignore-consent', '--moves', '0',
                           code=defragment.NO_PLAN)
        self.assertEqual('none', found['Action'])
