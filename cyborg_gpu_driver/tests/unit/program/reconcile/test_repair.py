# SPDX-License-Identifier: Apache-2.0

"""A GPU is not locked while Cyborg or another GPU is queried."""

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.partition import reconcile as words
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.tests.unit.program.reconcile import test_reconcile

K = words.Kind


class AskingTest(test_reconcile.ReconcileCase):

    def setUp(self):
        super().setUp()
        self.asked_of_cyborg = 0
        self.meanwhile = lambda: None

    def requests(self):
        """Return Cyborg's answer, which may take any time."""
        self.asked_of_cyborg += 1
        with locks.gpu(self.state_path, self.address, 0.0):
            pass
        answer = super().requests()
        self.meanwhile()
        return answer

    def difference(self, kind):
        (found,) = [item for item in self.reconciler.find()
                    if item.kind is kind]
        self.asked_of_cyborg = 0
        return found

    def test_a_handle_that_is_bound_again_meanwhile_stays(self):
        asked = self.handle('1g.5gb')
        self.binder.bind(*asked)
        lost = self.difference(K.NO_REQUEST)
        before = self.truth()
        # Cyborg gives the handle to the next server after its answer.
        self.meanwhile = lambda: self.binder.bind(*asked)
        error = self.assertRaises(exception.StepFailed,
                                  self.reconciler.repair, lost)
        self.assertIn('in the meantime', str(error))
        self.assertEqual(before, self.truth())
        self.assert_quiet()

    def test_a_gpu_that_is_read_again_meanwhile_is_left_out(self):
        asked = self.handle('1g.5gb')
        self.binder.bind(*asked)
        privileged_vgpu.remove_mdev(asked[2])
        self.live.refresh()
        self.assertNotEqual((), self.reconciler.find())

        def restore():
            privileged_vgpu.create_mdev(*asked)
            self.live.refresh_gpu(self.address)

        self.meanwhile = restore
        self.assertEqual((), self.reconciler.find())

    def test_a_gpu_that_somebody_keeps_locked_is_left_out(self):
        self.binder.bind(*self.handle('1g.5gb'))
        self.patch(locks.gpu, '__defaults__', (0.0, ''))
        with locks.gpu(self.state_path, self.address):
            self.cloud.requests = words.Requests
            self.assertEqual((), self.reconciler.find())
        self.assertEqual([K.NO_REQUEST], [
            item.kind for item in self.reconciler.find()])
