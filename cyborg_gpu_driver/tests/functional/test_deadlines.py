# SPDX-License-Identifier: Apache-2.0

"""Calls that do not keep Cyborg waiting, on the released services."""

import contextlib

from oslo_config import cfg

from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests.functional import test_mig
from demo_lib import nova_part


class DeadlineTest(test_mig.OneGpuCase):
    """A command of the operator holds the GPU."""

    overrides = {
        **test_mig.OneGpuCase.overrides,
        'gpu_policy:one': {**test_mig.OneGpuCase.overrides['gpu_policy:one'],
                           'profiles': '1g.10gb, 7g.80gb'}}

    def held(self):
        return locks.gpu(self.state_path, model.PciAddress.parse(self.gpu),
                         60.0, 'a command')

    @contextlib.contextmanager
    def patience(self, seconds):
        """Let Cyborg wait this long for an answer by RPC."""
        cfg.CONF.set_override('rpc_response_timeout', seconds)
        try:
            yield
        finally:
            cfg.CONF.clear_override('rpc_response_timeout')

    def test_a_bind_is_refused_before_cyborg_gives_up(self):
        whole = self.profile('CUSTOM_NVIDIA_7G_80GB')
        small = self.profile('CUSTOM_NVIDIA_1G_10GB')
        with self.patience(6), self.held():
            self.assertRaises(nova_part.BindFailed, self.cloud.bind, whole)
        # The refused bind has no effect later.
        self.report()
        self.assertEqual([], self.placements())
        self.assertEqual([], self.journal())
        self.cloud.unbind(self.cloud.bind(small))
        self.assertEqual(self.untouched['placement'],
                         self.cloud.placement.snapshot())
