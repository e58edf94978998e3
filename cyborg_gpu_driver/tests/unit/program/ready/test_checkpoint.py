# SPDX-License-Identifier: Apache-2.0

"""A checkpoint has the layout, and nothing that other parts restore."""

from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.ready import apply
from cyborg_gpu_driver.tests.unit.program import nodes
from cyborg_gpu_driver.tests.unit.program.ready import ready_case

_LAID_OUT = (19, 0)
"""Profile id and start of a 1g.10gb that an operator has created."""


class FixedTest(ready_case.ReadyCase):
    """Fixed vGPUs beside the operator's layout."""

    host = 'a100x4-vfio'

    def setUp(self):
        super().setUp()
        self.govern('mig', fixed_vgpus=(('A100D-3-40C', 1),))
        self.ready()
        (self.fixed_cut,) = self.cuts()
        privileged.create_gpu_instance(str(self.address), *_LAID_OUT, 1)

    def ready(self):
        """Do all that an agent does when it reports."""
        released = self.fixed.release(self.gpu())
        self.assertEqual('', released.reason)
        self.assertEqual('', self.prepare().reason)
        self.assertEqual('', self.fixed.make(self.gpu()).reason)

    def saved(self):
        return apply.Applier(self.transactions).saved(
            self.transactions.read(self.gpu()))

    def restore(self, saved):
        """Reboot and restore twice. Return the GPU instances after that."""
        self.machine.reboot()
        self.start()
        for _ in range(2):
            nodes.Node(self.platform, self.state_path, self.settings
                       ).restorer.restore(self.gpu(), saved)
        return self.cuts()

    def test_each_is_restored_once(self):
        saved = self.saved()
        self.assertEqual([_LAID_OUT], [
            (cut.profile_id, cut.placement.start)
            for cut in saved.layout.instances])
        vgpus = self.vgpus()
        self.assertEqual(sorted([self.fixed_cut, _LAID_OUT]),
                         self.restore(saved))
        self.assertEqual(vgpus, self.vgpus())

    def test_what_no_policy_wants_any_more_stays_away(self):
        saved = self.saved()
        self.govern('mig')
        self.ready()
        self.assertEqual([_LAID_OUT], self.cuts())
        self.assertEqual([_LAID_OUT], self.restore(saved))
