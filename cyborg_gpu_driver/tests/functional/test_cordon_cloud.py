# SPDX-License-Identifier: Apache-2.0

"""openstack gpu cordon, uncordon and drain, on the released services."""

import json

from cyborg.api import app as cyborg_app

from cyborg_gpu_driver.osc import cordons as osc_cordons
from cyborg_gpu_driver.osc import explain
from cyborg_gpu_driver.osc import host
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.program import cordons as program_cordons
from cyborg_gpu_driver.tests.functional import explain_case
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import test_disable
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.osc import running
from demo_lib import nova_part

FIRST, SECOND = test_disable.FIRST, test_disable.SECOND
_LARGE = 'CUSTOM_NVIDIA_3G_40GB'


class CloudCordonTest(test_disable.DisableCase):

    def setUp(self):
        super().setUp()
        self.compute = explain_case.NovaThatShelves(self.cloud)
        self.cloud_of_operator = self.useFixture(services.Services({
            'accelerator': cyborg_app.load_app(),
            'placement': services.forwarded(
                self.cloud.placement.url, 'admin'),
            'compute': self.compute})).cloud
        self.openstack = running.Openstack(self.cloud_of_operator)
        self.gpu_cordons = program_cordons.GpuCordons(self.state_path)
        self.large = self.profile(_LARGE)

    def run_gpu(self, command, *arguments, **kwargs):
        return self.openstack.run(command, gpu_cloud.HOST, *arguments,
                                  '-f', 'json', **kwargs)

    def rows(self, command, *arguments, code=0):
        return json.loads(self.run_gpu(command, *arguments, code=code)[0])

    def close(self, *gpus):
        """Cordon GPUs and let the agent report."""
        self.rows(osc_cordons.CordonGpu, *gpus, '--reason',
                  'Umzug nach Süden!', '--wait', '0', code=1)
        self.report()
        return self.rows(osc_cordons.CordonGpu, *gpus, '--reason', 'other')

    def traits(self):
        """Return the GPUs with traits of cordons, and all such traits."""
        placement = self.cloud.placement
        of_gpus = {
            name.split('_')[2]: placement.traits(provider['uuid'])
            for name, provider in placement.providers().items()
            if '_gpu_' in name}
        known = self.cloud_of_operator.ask('placement', '/traits', '1.26')
        return ({gpu for gpu, traits in of_gpus.items()
                 if cordon.of_traits(traits)},
                [name for name in known['traits']
                 if name.startswith(cordon.TRAIT)])

    def test_it_is_known_on_the_host_and_in_the_cloud(self):
        (row,) = self.close(SECOND)
        self.assertEqual((SECOND, True), (row['GPU'], row['Cordoned']))
        self.assert_disabled()
        (known,) = self.gpu_cordons.of(next(iter(self.gpu_cordons.known())))
        self.assertEqual((cordon.Source.CYBORG, 'Umzug nach Süden!'),
                         (known.source, known.reason))
        self.assertTrue(known.who and known.since)
        self.assertEqual([str(known)], row['Cordons'])
        self.assertEqual({SECOND}, self.traits()[0])
        for gpu, has in (FIRST, []), (SECOND, [str(known)]):
            self.assertEqual(has, self.rows(host.ShowGpu, gpu)['cordons'])
        for _ in range(2):
            self.restart_agent()
            self.report()
            self.assert_disabled()
        (row,) = self.rows(osc_cordons.UncordonGpu, SECOND)
        self.assertFalse(row['Cordoned'])
        self.report()
        self.assertEqual({False}, self.is_closed(SECOND))
        self.assertEqual({}, self.gpu_cordons.known())
        self.assertEqual((set(), []), self.traits())

    def test_a_whole_host(self):
        self.assertEqual([FIRST, SECOND],
                         [row['GPU'] for row in self.close('--all')])
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind, self.large)
        found = self.openstack.rows(explain.ExplainRequest,
                                    '--device-profile', self.large, code=1)
        self.assertIn('RESERVED_CORDONED', json.dumps(found))
        self.assertIn('Umzug nach S', json.dumps(found))
        self.rows(osc_cordons.UncordonGpu, '--all')
        self.report()
        self.assertEqual((set(), []), self.traits())
        self.cloud.unbind(self.cloud.bind(self.large))

    def test_a_cordon_on_the_host_stays(self):
        self.close(SECOND)
        self.command('gpu', 'cordon', SECOND, '--reason', 'a fan')
        self.report()
        output, errors = self.run_gpu(osc_cordons.UncordonGpu, SECOND, code=1)
        self.assertIn('cordoned on the host', output)
        self.assertIn('still cordoned: cordoned on the host', errors)
        self.assertIn(f'cyborg-gpu gpu uncordon {SECOND}', errors)
        self.report()
        self.assert_disabled()

    def drain(self, *arguments, code=0):
        return self.rows(osc_cordons.DrainGpu, SECOND, '--reason', 'a move',
                         *arguments, code=code)

    def boot_on_both(self, **metadata):
        """Fill both GPUs; return the servers of the second GPU, sorted."""
        servers = [self.compute.boot(self.large, f's{number}', **metadata)
                   for number in range(4)]
        return sorted(server.uuid for server in servers
                      if server.arqs[0]['attach_handle_info']['bus'] == '0f')

    def test_who_consents_is_shelved(self):
        mine = self.boot_on_both()
        self.compute.servers[mine[0]]['metadata']['gpu_movable'] = 'true'
        self.close(SECOND)
        output, errors = self.run_gpu(
            osc_cordons.DrainGpu, SECOND, '--reason', 'a move', '--shelve',
            answer='n', code=1)
        self.assertIn(f'{mine[0]} ', errors)
        self.assertIn('loses its memory', errors)
        self.assertEqual({'not confirmed', 'no gpu_movable=true'}, {
            row['Result'] for row in json.loads(output)})
        (row,) = self.drain('--shelve', '--yes', code=1)
        self.assertEqual((mine[1], 'no gpu_movable=true'),
                         (row['Server'], row['Result']))
        self.assertEqual('SHELVED_OFFLOADED',
                         self.compute.servers[mine[0]]['status'])
        self.assertEqual([], self.drain('--shelve', '--yes',
                                        '--ignore-consent'))
        self.assert_disabled()
        self.assertEqual({}, self.mdevs(SECOND))
