# SPDX-License-Identifier: Apache-2.0
"""What Cyborg and Placement keep of deleted servers, and its removal."""

import uuid

from cyborg import context
from cyborg.objects import ext_arq

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import orphans
from cyborg_gpu_driver.osc import orphan
from cyborg_gpu_driver.tests.functional import explain_case
from cyborg_gpu_driver.tests.functional import gpu_cloud
from demo_lib import client

SLICE = explain_case.SLICE


class OrphanCase(explain_case.ExplainCase):
    """A cloud whose operator has the roles of Nova's own user."""

    roles = ('admin', 'service')

    def listed(self, code=1):
        """Return kinds and subjects of what is left, and the rows."""
        rows = self.openstack.rows(orphan.CleanOrphan, '--dry-run',
                                   code=code)
        return {(row['Kind'], row['Subject']) for row in rows}, rows

    def clean(self, code=0):
        return self.openstack.run(
            orphan.CleanOrphan, '--yes', '--older-than', '0', code=code)[1]

    def quiet(self):
        """Check that all is as before, except for the device profiles."""
        self.report()
        self.assertEqual(self.untouched, self.everything())
        self.assertEqual(0, self.handles_in_use())
        self.assertEqual(set(), self.listed(code=0)[0])

    def allocate(self):
        """Allocate a slice to a consumer that is no server; return it."""
        provider = self.cloud.provider(self.name('1g.10gb'))['uuid']
        consumer = str(uuid.uuid4())
        self.cloud.placement.put(f'/allocations/{consumer}', {
            'allocations': {provider: {'resources': {SLICE: 1}}},
            'project_id': client.PROJECT, 'user_id': client.USER,
            'consumer_generation': None, 'consumer_type': 'INSTANCE'})
        return consumer

    def fail(self, arq, state):
        """Put a request into a state in which Cyborg leaves requests."""
        admin = context.get_admin_context()
        found = ext_arq.ExtARQ.get(admin, arq)
        found.update_state(admin, state)


class FinisherTest(OrphanCase):
    """What the agent does by itself if it has credentials."""

    def setUp(self):
        super().setUp()
        self.now = 0
        self.finisher = orphans.Finisher(lambda: self.services.cloud,
                                         gpu_cloud.HOST, 300,
                                         lambda: self.now)

    def look(self, *moments):
        for self.now in moments:
            self.finisher.look()

    def lose(self):
        """Delete a server whose host's agent does not answer."""
        server = self.boot(self.profile(SLICE), 'gone')
        del self.compute.servers[server.uuid]
        self.cloud.placement.delete(f'/allocations/{server.uuid}')
        return server

    def assert_stays(self):
        self.assertEqual(1, len(self.mdevs()))
        (arq,) = self.cloud.cyborg.arqs()
        self.assertEqual('Bound', arq['state'])

    def test_a_request_of_a_gone_server_is_finished(self):
        self.lose()
        self.look(0, 299)
        self.assert_stays()
        self.look(300)
        self.assertEqual({}, self.mdevs())
        self.quiet()

    def test_a_server_that_lives_keeps_its_request(self):
        self.boot(self.profile(SLICE), 'alive')
        self.look(0, 300, 600)
        self.assert_stays()

    def test_an_allocation_keeps_the_request(self):
        server = self.boot(self.profile(SLICE), 'gone')
        del self.compute.servers[server.uuid]
        self.look(0, 300, 600)
        self.assert_stays()

    def test_nova_of_another_region_finishes_nothing(self):
        self.lose()
        self.compute.hypervisors.clear()
        self.look(0, 300, 600)
        self.assert_stays()


class CleanTest(OrphanCase):

    def test_a_server_that_is_gone(self):
        server = self.boot(self.profile(SLICE), 'gone')
        del self.compute.servers[server.uuid]
        (arq,) = server.arqs
        found, rows = self.listed()
        self.assertEqual({('request-of-gone-server', arq['uuid']),
                          ('allocation-of-gone-server', server.uuid)}, found)
        self.assertIn(server.device_profile, {row['Pins'] for row in rows})
        self.clean()
        self.assertEqual({}, self.mdevs())
        self.quiet()

    def test_a_stranger_in_the_place_of_a_server(self):
        """As many are used as requests are bound, but by another consumer."""
        server = self.boot(self.profile(SLICE), 'gone')
        (arq,) = server.arqs
        del self.compute.servers[server.uuid]
        self.cloud.placement.delete(f'/allocations/{server.uuid}')
        stranger = self.allocate()
        self.assertEqual({('request-of-gone-server', arq['uuid']),
                          ('allocation-of-gone-server', stranger)},
                         self.listed()[0])
        self.clean()
        self.quiet()

    def test_a_bind_that_failed(self):
        server = self.boot(self.profile(SLICE), 'failed')
        (arq,) = server.arqs
        self.fail(arq['uuid'], 'BindFailed')
        self.assertIn('nothing to remove', self.clean())
        self.assertEqual(1, len(self.mdevs()))
        del self.compute.servers[server.uuid]
        self.clean()
        self.assertEqual({}, self.mdevs())
        self.quiet()

    def test_a_consumer_that_is_no_server(self):
        consumer = self.allocate()
        self.compute.migrations.append({'uuid': consumer})
        self.assertEqual(set(), self.listed(code=0)[0])
        self.compute.migrations.clear()
        self.clean()
        self.quiet()

    def test_a_bind_under_way_is_let_alone(self):
        profile = self.profile(SLICE)
        arqs = self.cloud.cyborg.create_arqs(profile)
        before = orphans.find(orphans.read(
            self.services.cloud))
        self.cloud.cyborg.delete_arqs(uuids=[arqs[0]['uuid']])
        self.cloud.cyborg.create_arqs(profile)
        now = orphans.find(orphans.read(
            self.services.cloud))
        self.assertEqual((1, 1), (len(before), len(now)))
        self.assertEqual((), orphans.lasting(before, now))
        self.clean()


class WithdrawnTest(OrphanCase):
    """Providers of what a GPU does not offer any more."""

    def test_an_operator_removes_them(self):
        before = {*self.cloud.placement.providers()}
        self.change_policy('slices', profiles=['1g.10gb', '3g.40gb'])
        self.report()
        self.assertIn('nothing to remove', self.clean())
        self.assertEqual(before, {*self.cloud.placement.providers()})
        text = self.openstack.run(orphan.CleanOrphan, '--yes', '--providers',
                                  '--older-than', '0')[1]
        self.assertIn(f'Restart nova-compute on {gpu_cloud.HOST}', text)
        after = before - {self.name('7g.80gb')}
        self.assertEqual(after, {*self.cloud.placement.providers()})
        self.report()
        self.assertEqual(after, {*self.cloud.placement.providers()})
        self.change_policy('slices',
                           profiles=['1g.10gb', '3g.40gb', '7g.80gb'])
        self.report()
        self.assertEqual(before, {*self.cloud.placement.providers()})


class RaceTest(OrphanCase):
    """What changes between the search and the removal."""

    def found(self):
        return orphans.find(
            orphans.read(self.services.cloud))

    def kept(self, item):
        return str(self.assertRaises(
            exception.ChangeRefused, orphans.remove,
            self.services.cloud, item))

    def test_a_server_that_comes_back_keeps_all(self):
        server = self.boot(self.profile(SLICE), 'late')
        shown = self.compute.servers.pop(server.uuid)
        found = self.found()
        self.assertEqual(2, len(found))
        self.compute.servers[server.uuid] = shown
        for item in found:
            self.assertIn(' exists', self.kept(item))
        self.assertEqual(1, len(self.mdevs()))
        self.cloud.unbind(server)

    def test_a_migration_that_shows_up_keeps_its_own(self):
        consumer = self.allocate()
        (item,) = self.found()
        self.compute.migrations.append({'uuid': consumer})
        self.assertIn(' exists', self.kept(item))
        self.compute.migrations.clear()
        orphans.remove(self.services.cloud, item)
        self.quiet()

    def test_a_request_that_is_bound_meanwhile_is_kept(self):
        profile = self.profile(SLICE)
        arqs = self.cloud.cyborg.create_arqs(profile)
        (item,) = self.found()
        nova = self.cloud.nova
        candidate = nova.candidates(profile)[0]
        server = str(uuid.uuid4())
        nova.claim(server, candidate)
        self.compute.add(server, 'new')
        self.cloud.cyborg.bind({arqs[0]['uuid']: {
            'hostname': nova.host, 'instance_uuid': server,
            'device_rp_uuid': candidate['mappings'][
                '_device_profile_0'][0]}})
        self.assertIn('uses it now', self.kept(item))
        self.cloud.cloud.events.wait_for(server, 1, 30)
        nova.delete_server(server)


class NoServiceTest(OrphanCase):
    """An administrator who is not a service."""

    roles = ('admin',)

    def test_he_is_told_whom_cyborg_heeds(self):
        server = self.boot(self.profile(SLICE), 'gone')
        del self.compute.servers[server.uuid]
        said = self.clean(code=1)
        self.assertIn('roles admin and service', said)
        self.assertIn('must be deleted first', said)
        self.assertEqual(1, len(self.mdevs()))
        self.assertEqual(2, len(self.listed()[0]))
        self.cloud.unbind(server)
