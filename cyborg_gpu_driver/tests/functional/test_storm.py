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

"""Many users at once on one GPU, and everything as before afterwards.

``CYBORG_GPU_STORM`` says how many servers each user makes.
"""

import collections
import os
import random
import threading

from cyborg_gpu_driver.demo import client
from cyborg_gpu_driver.demo import nova_part
from cyborg_gpu_driver.tests.functional import test_mig

_USERS = 6
_SERVERS = int(os.environ.get('CYBORG_GPU_STORM', '12'))
_PROFILES = ('1G_10GB', '2G_20GB', '3G_40GB', '4G_40GB', '7G_80GB')


class StormTest(test_mig.OneGpuCase):

    def setUp(self):
        super().setUp()
        self.names = [self.profile(f'CUSTOM_NVIDIA_{name}')
                      for name in _PROFILES]
        self.lock = threading.Lock()
        self.outcomes = collections.Counter()
        self.failures = []

    def test_servers_come_and_go(self):
        users = [threading.Thread(target=self._use, args=(number,))
                 for number in range(_USERS)]
        reports = threading.Event()
        reporter = threading.Thread(target=self._report, args=(reports,))
        reporter.start()
        for user in users:
            user.start()
        for user in users:
            user.join()
        reports.set()
        reporter.join()
        self.assertEqual([], self.failures)
        self.report()
        self.assertEqual(self.untouched, self.everything())
        self.assertEqual(0, self.handles_in_use())
        self.assertGreater(self.outcomes['bound'], _USERS, self.outcomes)

    def _use(self, number):
        """One user: make servers and delete them, whatever comes of it."""
        chance = random.Random(number)
        mine = []
        try:
            for _ in range(_SERVERS):
                server = self._create(chance.choice(self.names))
                if server is not None:
                    mine.append(server)
                while mine and (len(mine) > 1 or chance.random() < 0.6):
                    self.cloud.unbind(mine.pop(0))
            for server in mine:
                self.cloud.unbind(server)
        except Exception as error:
            self.failures.append(repr(error))

    def _create(self, name):
        try:
            server = self.cloud.bind(name)
        except nova_part.NoCandidates:
            outcome, server = 'no candidates', None
        except nova_part.BindFailed:
            outcome, server = 'lost race', None
        except client.ApiError as error:
            if error.status != 409:
                raise
            # Another claim was quicker; Nova would ask again.
            outcome, server = 'lost claim', None
        else:
            outcome = 'bound'
            self._check_owned(server)
        with self.lock:
            self.outcomes[outcome] += 1
        return server

    def _check_owned(self, server):
        """Each handle has an mdev of its own on the hardware."""
        for arq in server.arqs:
            if arq['attach_handle_uuid'] not in self.mdevs():
                self.failures.append(f'{arq} has nothing')

    def _report(self, ended):
        while not ended.wait(0.5):
            self.cloud.report()
