# SPDX-License-Identifier: Apache-2.0

"""Many users at the same time, and everything as before afterwards."""

import collections
import contextlib
import random
import threading
import traceback

import testscenarios

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import gpu_cloud
from demo_lib import client
from demo_lib import nova_part

load_tests = testscenarios.load_tests_apply_scenarios

_USERS = 8
_SERVERS = 9 if scope.ALL else 4
"""Servers that each user creates."""


def _configuration(mode, *gpus, **options):
    """Return the configuration that offers only these GPUs, in one mode."""
    return {'gpu': {'policies': 'one'},
            'gpu_policy:one': {'mode': mode, 'match_address': ','.join(gpus),
                               **options}}


class StormTest(gpu_cloud.GpuTestCase):

    scenarios = scope.first(
        ('slices on mdev', {
            'machine': gpu_cloud.TWO_GPUS, 'gpus': (
                '0000:07:00.0', '0000:0f:00.0'),
            'classes': ('1G_10GB', '2G_20GB', '3G_40GB', '4G_40GB',
                        '7G_80GB'),
            'overrides': _configuration(
                'mig', '0000:07:00.0', '0000:0f:00.0',
                profiles='1g.10gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb')}),
        ('slices without mdev', {
            'machine': 'a100x4-vfio', 'gpus': ('0000:31:00.0',),
            'classes': ('1G_10GB', '3G_40GB', '7G_80GB'),
            'overrides': _configuration(
                'mig', '0000:31:00.0',
                profiles='1g.10gb, 3g.40gb, 7g.80gb')}),
        ('time slices without mdev', {
            'machine': 'a100x4-vfio', 'gpus': ('0000:b1:00.0',),
            'classes': ('A100D_20C', 'A100D_40C'),
            'overrides': _configuration(
                'vgpu', '0000:b1:00.0', vgpu_types='A100D-20C, A100D-40C')}))

    def setUp(self):
        super().setUp()
        self.names = [self.profile(f'CUSTOM_NVIDIA_{name}')
                      for name in self.classes]
        self.lock = threading.Lock()
        self.outcomes = collections.Counter()
        self.failures = []
        self.owners = {}
        """Server by vGPU and by GPU instance."""
        self.quiet = threading.Barrier(_USERS + 1)

    def test_servers_come_and_go(self):
        users = [threading.Thread(target=self._use, args=(number,))
                 for number in range(_USERS)]
        over = threading.Event()
        reporter = threading.Thread(target=self._report, args=(over,))
        for thread in (reporter, *users):
            thread.start()
        try:
            self._wait()
            over.set()
            reporter.join()
            self._check_quiet()
        finally:
            over.set()
            self._wait()
            for user in users:
                user.join()
        print(f'{self.id()}: {dict(self.outcomes)}')
        self.assertEqual([], self.failures)
        self.report()
        self.assertEqual(self.untouched, self.everything())
        self.assertEqual(0, self.handles_in_use())
        # How many win depends on the order of the threads.
        self.assertGreater(self.outcomes['bound'], 0, self.outcomes)
        self.assertGreater(self.outcomes['report'], 0, self.outcomes)

    def _wait(self):
        self.quiet.wait(scope.HANG)

    def _check_quiet(self):
        """Check the state while users hold servers and do nothing.

        Binds and unbinds must have left in Placement what a report writes.
        """
        held = {*self.owners.values()}
        self.assertEqual(len(held), self.handles_in_use())
        self.assertEqual(len(held), sum(
            len(self.hardware(gpu).vgpus) for gpu in self.gpus))
        reserved = [self.reserved(gpu) for gpu in self.gpus]
        self.report()
        self.assertEqual(reserved,
                         [self.reserved(gpu) for gpu in self.gpus])

    def _use(self, number):
        """Act as one user: create and delete servers, whatever happens."""
        mine = collections.deque()
        with self._noted():
            self._make(random.Random(number), mine)
        with self._noted():
            self._wait()
            self._wait()
            while mine:
                self._delete(mine.popleft())

    @contextlib.contextmanager
    def _noted(self):
        try:
            yield
        except Exception:
            self.failures.append(traceback.format_exc())

    def _make(self, chance, mine):
        for _ in range(_SERVERS):
            server = self._create(chance.choice(self.names))
            if server is not None:
                mine.append(server)
            while mine and (len(mine) > 1 or chance.random() < 0.6):
                self._delete(mine.popleft())

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
            # Another claim was quicker. Nova would ask again.
            outcome, server = 'lost claim', None
        else:
            outcome = 'bound'
            self._own(server)
        with self.lock:
            self.outcomes[outcome] += 1
        return server

    def _delete(self, server):
        with self.lock:
            # Do this first: after the unbind they may be another server's.
            self.owners = {thing: owner for thing, owner
                           in self.owners.items() if owner != server.uuid}
        self.cloud.unbind(server)

    def _own(self, server):
        """Check that no other server has this server's vGPU or instance."""
        for arq in server.arqs:
            things = self._things(arq)
            with self.lock:
                if not things or things & self.owners.keys():
                    self.failures.append(f'{arq}: {things}, {self.owners}')
                self.owners.update(dict.fromkeys(things, server.uuid))

    def _things(self, arq):
        """Return what a bound handle has on the hardware."""
        info = arq['attach_handle_info']
        names = (arq['attach_handle_uuid'],
                 '{domain}:{bus}:{device}.{function}'.format(**info))
        kind = int(info['asked_type'].rpartition('-')[2])
        return {
            (gpu, thing) for gpu in self.gpus
            for vgpu in self.hardware(gpu).vgpus
            if (vgpu.uuid or vgpu.function) in names and vgpu.type_id == kind
            for thing in (vgpu.function, vgpu.instance) if thing is not None}

    def _report(self, over):
        while not over.wait(0.5):
            with self._noted():
                self.cloud.report()
                with self.lock:
                    self.outcomes['report'] += 1
