# SPDX-License-Identifier: Apache-2.0

"""The driver refuses wrong requests by RPC, and changes nothing."""

import uuid

from cyborg import context
from cyborg.agent import rpcapi
from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests.functional import test_mig
from demo_lib import client
from demo_lib import nova_part

_HANDLE = '7f3b1c0e-5b6a-4d0f-9a53-0d4d8e1f2a3b'


class RefusalCase(test_mig.OneGpuCase):

    overrides = {
        **test_mig.OneGpuCase.overrides,
        'gpu_policy:one': {**test_mig.OneGpuCase.overrides['gpu_policy:one'],
                           'profiles': '1g.10gb'}}

    def setUp(self):
        super().setUp()
        self.slices = self.profile('CUSTOM_NVIDIA_1G_10GB')


class RefusalTest(RefusalCase):

    def setUp(self):
        super().setUp()
        server = self.cloud.bind(self.slices)
        info = server.arqs[0]['attach_handle_info']
        self.function = '{domain}:{bus}:{device}.{function}'.format(**info)
        self.type = info['asked_type']
        self.bound = server.arqs[0]['attach_handle_uuid']
        self.before = self.everything()

    def bad(self):
        """Yield wrong arguments, and what the refusal must name."""
        yield ('../../x', self.type, _HANDLE), '../../x'
        yield (self.function + '/../..', self.type, _HANDLE), 'PCI address'
        yield ('0000:fe:00.0', self.type, _HANDLE), '0000:fe:00.0'
        yield (self.function, '../../x', _HANDLE), '../../x'
        yield (self.function, 'nvidia-9999', _HANDLE), 'nvidia-9999'
        yield (self.function, self.type, 'not-a-uuid'), 'not-a-uuid'
        yield (self.function, self.type, '../' + _HANDLE[3:]), 'UUID'
        # A GPU of this machine that no policy covers.
        yield ('0000:0f:00.4', self.type, _HANDLE), 'no handle'
        # Bound already, as another type.
        yield (self.function, 'nvidia-1', self.bound), 'bound as'

    def test_binds_by_rpc(self):
        agent = rpcapi.AgentAPI()
        for strings, words in self.bad():
            error = self.assertRaises(
                Exception, agent.create_vgpu_mdev,
                context.get_admin_context(), cfg.CONF.host, *strings)
            self.assertIn(words, str(error))
        self.assertEqual(self.before, self.everything())

    def test_unbinds_never_raise(self):
        for strings, _ in self.bad():
            self.assertIsNone(self.driver.unbind(*strings))
            self.assertEqual(self.before, self.everything(), strings)
        self.driver.unbind(None, None, None)
        self.driver.unbind(self.function, self.type, str(uuid.uuid4()))
        self.assertEqual(self.before, self.everything())

    def test_a_host_with_servers_keeps_its_name(self):
        conf = cfg.CONF
        conf.set_override('host', 'renamed')
        self.addCleanup(conf.clear_override, 'host')
        self.assertIn('know as compute1', str(self.assertRaises(
            exception.InvalidConfiguration, type(self.driver))))
        conf.clear_override('host')
        type(self.driver)()

    def test_a_repeated_bind_changes_nothing_but_is_counted(self):
        self.driver.bind(self.function, self.type, self.bound)
        after = self.everything()
        (claim,) = [claim for claim in after['journal'] if claim['repeats']]
        self.assertEqual((self.bound, 1), (claim['handle'],
                                           claim['repeats']))
        claim['repeats'] = 0
        self.assertEqual(self.before, after)

    def test_a_repeated_unbind_changes_nothing(self):
        for _ in range(2):
            self.driver.unbind(self.function, self.type, self.bound)
            self.assertEqual([], self.placements())
            self.assertEqual({}, self.mdevs())


class AllocationTest(RefusalCase):
    """Requests for accelerators of servers that have claimed none."""

    def steal(self):
        """Ask for a slice as a user of an old Cyborg can: without Nova."""
        server = str(uuid.uuid4())
        bindings = {arq['uuid']: {
            'hostname': self.cloud.nova.host, 'instance_uuid': server,
            'device_rp_uuid': self.cloud.provider(
                self.name('1g.10gb'))['uuid']}
            for arq in self.cloud.cyborg.create_arqs(self.slices)}
        error = self.assertRaises(client.ApiError, self.cloud.cyborg.bind,
                                  bindings)
        self.assertIn('no allocation', str(error))
        self.cloud.cyborg.delete_arqs(instance=server)

    def test_a_request_without_an_allocation_gets_nothing(self):
        self.steal()
        self.assertEqual([], self.placements())
        servers = [self.cloud.bind(self.slices) for _ in range(2)]
        bound = self.placements()
        self.steal()
        self.assertEqual(bound, self.placements())
        # The room is left for those that have an allocation.
        servers += [self.cloud.bind(self.slices) for _ in range(5)]
        self.assertEqual(7, len(self.placements()))
        for server in servers:
            self.cloud.unbind(server)
        self.report()
        self.assertEqual(self.untouched, self.everything())

    def test_a_bind_is_refused_before_cyborg_gives_up(self):
        """A command of the operator holds the GPU."""
        cfg.CONF.set_override('rpc_response_timeout', 6)
        self.addCleanup(cfg.CONF.clear_override, 'rpc_response_timeout')
        with locks.gpu(self.state_path, model.PciAddress.parse(self.gpu),
                       60.0, 'a command'):
            self.assertRaises(nova_part.BindFailed, self.cloud.bind,
                              self.slices)
        # The refused bind has no effect later.
        self.report()
        self.assertEqual([], self.placements())
        self.assertEqual([], self.journal())
        self.cloud.unbind(self.cloud.bind(self.slices))
        self.assertEqual(self.untouched['placement'],
                         self.cloud.placement.snapshot())
