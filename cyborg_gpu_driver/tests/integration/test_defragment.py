# SPDX-License-Identifier: Apache-2.0

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import fleet
from cyborg_gpu_driver.cloud import nova
from cyborg_gpu_driver.osc import defragment
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.unit.osc import running

_GPUS = 4
"""GPUs with MIG enabled. Each has room for one 4g."""


@scope.only_in_all
class DefragmentTest(base.TestCase):

    def test_a_plan_is_carried_out(self):
        """A 3g moves away from a GPU that it has alone, and a 7g fits."""
        cloud = connection.Cloud(self.admin, 'admin')
        large = self.flavor_of('CUSTOM_NVIDIA_4G_40GB')
        blockers = [self.boot(large, self.admin) for _ in range(_GPUS)]
        movable = self.boot(self.flavor_of('CUSTOM_NVIDIA_3G_40GB'),
                            metadata={fleet.CONSENT: 'true'})

        def place(server):
            (_, found), = nova.accelerators(cloud, server.id)
            return found.host, found.gpu

        origin = place(movable)
        beside, = (server for server in blockers if place(server) == origin)
        self.delete(beside)
        openstack = running.Openstack(cloud)

        def run(action):
            return openstack.rows(
                defragment.Defragment, action, '--yes', '--profile',
                '7g.80gb')

        def planned():
            try:
                return run('--plan')
            except AssertionError:
                # The agent has not reported the free capacity yet.
                return None

        self.until(planned, 'there is a plan')
        move, room = run('--apply')
        self.assertEqual(('move', movable.id, 'room'), (
            move['Action'], move['Server ID'], room['Action']))
        self.assertNotEqual(origin, place(movable))
        whole = self.boot(self.flavor_of('CUSTOM_NVIDIA_7G_80GB'))
        self.assertEqual(origin, place(whole))
