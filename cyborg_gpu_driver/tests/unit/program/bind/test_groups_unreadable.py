# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Groups of GPUs while the record of one GPU cannot be read."""

import contextlib
import os

import fixtures

from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.program.bind import group_case


class UnreadableCase(group_case.GroupCase):

    @contextlib.contextmanager
    def unreadable(self, address):
        """Make a record unreadable.

        A directory stands for the file, because root can read any file.
        """
        path = store.of(self.state_path).path(address)
        os.rename(path, f'{path}.away')
        os.mkdir(path)
        try:
            yield
        finally:
            os.rmdir(path)
            os.rename(f'{path}.away', path)

    def offers(self):
        """The offers of the GPUs whose records can be read."""
        return [offer for gpu in self.running.live.host().gpus
                if self.journal.has_claims(gpu.address) is not None
                for offer in self.running.live.offers(gpu)]


class SwitchTest(UnreadableCase):

    def test_the_fabric_manager_gets_no_list_without_its_claims(self):
        log = self.useFixture(fixtures.FakeLogger())
        for modules in ((1,), (5, 7)):
            self.bind(*modules)
            members = self.offer(*modules).members
            for address in members:
                self.world.attach_whole(str(address))
            for address in members:
                with self.unreadable(address):
                    self.report()
                    self.world.stop_fabric_manager()
                    self.world.start_fabric_manager(restart=True)
                    for _ in range(2):
                        self.report()
                    self.assertEqual((), self.world.damage)
                    self.assertEqual(1, log.output.count(
                        f'no list of the active partitions, because GPU '
                        f'{address} may be in one'))
                self.report()
                self.assert_sound()

    def test_what_nvlink_connects_stays_known(self):
        groups = self.free()
        for restarts in (False, True):
            address = self.offer(1, 3).gpu
            before = self.journal.nvlink(address)
            with self.unreadable(address):
                if restarts:
                    self.begin()
                for _ in range(2):
                    self.report()
                self.assertEqual({group for group in groups
                                  if 1 not in group}, self.free())
            if restarts:
                # The process has found the GPU unprepared, and waits before
                # it tries again.
                self.begin()
            self.report()
            self.assertEqual(before, self.journal.nvlink(address))
            self.assertEqual(groups, self.free())
            self.running.binder.unbind(*self.bind(1, 3))
            # The first report removes the group, and the second prepares it.
            for _ in range(2):
                self.report()


class BridgeTest(UnreadableCase):

    host = 'h100nvlx2'

    def modules(self, offer):
        return tuple(map(str, offer.members))

    def test_a_pair_stays_reported(self):
        pair = ('0000:17:00.0', '0000:65:00.0')
        for restarts in (False, True):
            with self.unreadable(pair[1]):
                if restarts:
                    self.begin()
                for _ in range(2):
                    self.report()
                self.assertEqual({(pair[0],)}, self.free())
                self.assertEqual('', self.offer(*pair).problem)
            self.report()
            self.assertIn(pair, self.free())
