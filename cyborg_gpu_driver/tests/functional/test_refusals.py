# SPDX-License-Identifier: Apache-2.0

"""The driver refuses wrong requests by RPC, and changes nothing."""

import uuid

from cyborg import context
from cyborg.agent import rpcapi
from oslo_config import cfg

from cyborg_gpu_driver.tests.functional import test_mig

_HANDLE = '7f3b1c0e-5b6a-4d0f-9a53-0d4d8e1f2a3b'


class RefusalTest(test_mig.OneGpuCase):

    overrides = {
        **test_mig.OneGpuCase.overrides,
        'gpu_policy:one': {**test_mig.OneGpuCase.overrides['gpu_policy:one'],
                           'profiles': '1g.10gb'}}

    def setUp(self):
        super().setUp()
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_1G_10GB'))
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
