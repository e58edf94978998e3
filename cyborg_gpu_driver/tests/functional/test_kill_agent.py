# SPDX-License-Identifier: Apache-2.0

"""The agent is killed at every step of its work on a GPU.

Whenever the process dies, the next one finishes or undoes what was under way.
"""

import contextlib
import itertools
import os
import resource
import time
import uuid

import fixtures
import testscenarios

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.functional import kill_case

load_tests = testscenarios.load_tests_apply_scenarios

_MIG = {'mode': 'mig', 'profiles': ['2g.10gb']}
_VGPU = {'mode': 'vgpu', 'vgpu_types': ['A100X-10C']}
_MIXED = {'mode': 'vgpu', 'vgpu_types': ['A100X-10C', 'A100X-20C'],
          'mixed_sizes': True, 'vgpu_scheduler': 'equal-share'}
_PAIR = 'nvlink-2'
_CLASS = 'PGPU'


class BindTest(kill_case.KillCase):

    scenarios = scope.first(
        ('slices on mdev', {'options': {
            'mode': 'mig', 'profiles': ['2g.10gb']}}),
        ('time slices on mdev', {'mig': False, 'options': {
            'mode': 'vgpu', 'vgpu_types': ['A100X-10C']}}),
        ('mixed sizes on mdev', {'mig': False, 'options': {
            'mode': 'vgpu', 'vgpu_types': ['A100X-10C', 'A100X-20C'],
            'mixed_sizes': True}}),
        ('on the GPU itself', {'model': 't4', 'mig': False, 'options': {
            'mode': 'vgpu', 'vgpu_types': ['T4-4C']}}),
        ('slices without mdev', {'framework': 'vendor-vfio', 'options': {
            'mode': 'mig', 'profiles': ['2g.10gb']}}),
        ('several an instance', {
            'model': 'rtx-pro-6000', 'framework': 'vendor-vfio', 'options': {
                'mode': 'mig', 'vgpu_types': ['DC-1-8Q']}}))

    def setUp(self):
        super().setUp()
        self.name = str(uuid.uuid4())
        self.begun = time.time()

    def test_bind(self):
        def check():
            self._restart()

            def again(running):
                handle = self.handle(running, self.name)
                running.bind(*handle)

            self.process(again)
            self._one_is_bound()
            self._nothing_is_left_after_unbind()

        self.sweep(
            lambda: self.process(self.get_ready),
            lambda number: self.process(lambda running: running.bind(
                *self.handle(running, self.name)), number), check)
        self.say('bind')

    def test_unbind(self):
        def check():
            self._restart()
            self._nothing_is_left_after_unbind()

        def bind(running):
            self.get_ready(running)
            running.bind(*self.handle(running, self.name))

        self.sweep(
            lambda: self.process(bind),
            lambda number: self.process(lambda running: running.unbind(
                *self.handle(running, self.name)), number), check)
        self.say('unbind')

    def _restart(self):
        """Report, which finishes or undoes what was under way."""
        self.process(lambda running: running.report())
        phases = [entry['phase'] for entry in self.journal()]
        self.assertIn(phases, ([], ['bound']))
        self.assertEqual(len(phases), len(self.truth()[1]))

    def _one_is_bound(self):
        (entry,) = self.journal()
        self.assertEqual((self.name, 'bound'),
                         (entry['handle'], entry['phase']))
        instances, vgpus, _ = self.truth()
        self.assertEqual(1, len(vgpus))
        self.assertEqual(1 if self.mig else 0, len(instances))
        self.assertEqual(entry['function'] if entry['vfio'] else self.name,
                         vgpus[0])

    def _nothing_is_left_after_unbind(self):
        self.process(lambda running: (
            running.report(),
            running.unbind(*self.handle(running, self.name)),
            running.report()))
        self.assertEqual([], self.journal())
        self.assertEqual(([], []), self.truth()[:2])
        self._one_was_counted()

    def _one_was_counted(self):
        """Check that the handle's time was recorded despite the kills."""
        found = [record.ledger for record
                 in store.Store(self.state_path).records().values()]
        self.assertEqual([], [item for known in found
                              for item in known.running])
        times = [spent for known in found for projects
                 in known.ended.values() for spent in projects.values()]
        self.assertEqual(1, len(times))
        self.assertLessEqual(0, times[0])
        self.assertLessEqual(times[0], (time.time() - self.begun) * 1000)


_MOST_SPARE = 5
"""More file descriptors than a bind has open at once."""


class DescriptorsTest(kill_case.KillCase):
    """A process that has no more file descriptors binds all or nothing."""

    options = _MIG

    def test_bind(self):
        def work(running):
            self.get_ready(running)
            where, kind, _ = self.handle(running, '')
            outcomes = [self._bind(running, spare, where, kind)
                        for spare in range(_MOST_SPARE + 1)]
            self.assertEqual([False, True], [outcomes[0], outcomes[-1]])

        self.begin()
        self.process(work)

    def _bind(self, running, spare, where, kind):
        """Bind with this number of free descriptors; whether it succeeds."""
        name = str(uuid.uuid4())
        with _descriptors(spare):
            try:
                running.bind(where, kind, name)
                is_bound = True
            except Exception:
                is_bound = False
        self.assertEqual(is_bound, [
            claim['phase'] for claim in self.journal()] == ['bound'], spare)
        # The driver tells Cyborg of no error; a report removes what is left.
        with _descriptors(_MOST_SPARE - spare), contextlib.suppress(Exception):
            running.unbind(where, kind, name)
        running.report()
        self.assertEqual([], self.journal())
        self.assertEqual(([], []), self.truth()[:2])
        return is_bound


@contextlib.contextmanager
def _descriptors(spare):
    """Leave this process so many free file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir('/proc/self/fd')))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + spare + 1, hard))
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    for descriptor in taken[len(taken) - spare:]:
        os.close(descriptor)
    try:
        yield
    finally:
        for descriptor in taken[:len(taken) - spare]:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class ChangeTest(kill_case.KillCase):
    """The GPU was used under another policy before."""

    prepared = False
    scenarios = scope.first(
        ('time slices to slices', {
            'options': _VGPU, 'then': _MIG, 'ends': (True, 16, False)}),
        ('slices to time slices', {
            'options': _MIG, 'then': _VGPU, 'ends': (False, 16, False)}),
        ('mixed sizes to slices', {
            'options': _MIXED, 'then': _MIG, 'ends': (True, 16, False)}),
        ('slices to mixed sizes', {
            'options': _MIG, 'then': _MIXED, 'ends': (False, 16, True)}))

    def test_mode_change(self):
        self.use_placement()
        name = str(uuid.uuid4())

        def use(running):
            self.get_ready(running)
            running.bind(*self.handle(running, name))

        def prepare():
            """Delete the last server while the new policy waits for it."""
            self.process(use)
            self.write_config(self.then)
            self.process(lambda running: running.report())
            self.assertEqual(1, len(self.truth()[1]))
            self.process(lambda running: running.unbind(
                self.journal()[0]['function'],
                self.journal()[0]['mdev_type'], name))

        def check():
            self.process(self.get_ready)
            self.assertEqual(([], [], self.ends), self.truth())
            self.assertEqual([], self.journal())
            self.process(use)
            self.assertEqual(1, len(self.truth()[1]))

        self.sweep(prepare, lambda number: self.process(
            self.get_ready, number), check)
        self.say('mode change', 1)


class FixedTest(kill_case.KillCase):
    """A report makes fixed vGPUs, or removes them for another policy."""

    framework = 'vendor-vfio'
    scenarios = scope.first(
        ('slices', {'options': {'mode': 'mig', 'fixed_vgpus':
                                'A100X-2-10C:2'}}),
        ('time slices', {'mig': False, 'options': {
            'mode': 'vgpu', 'fixed_vgpus': 'A100X-10C:3'}}))

    def setUp(self):
        super().setUp()
        self.full = None

    def _report(self, number=None):
        return self.process(lambda running: running.report(), number)

    def test_made(self):
        def check():
            self._report()
            self.full = self.full or self.truth()
            self.assertEqual(self.full, self.truth())

        self.begin()
        check()
        self.assertGreater(len(self.full[1]), 1)
        self.sweep(lambda: None, self._report, check)
        self.say('fixed vGPUs made')


class GroupTest(kill_case.KillCase):
    """Binds and unbinds of groups of GPUs.

    No partition stays active without an owner, no owner without its active
    partition, and no GPU with two owners.
    """

    options = {'mode': 'nvlink', 'nvlink_sizes': '2, 4'}

    def setUp(self):
        super().setUp()
        # Half a board, which has two pairs.
        self.host = host_files.write_unprepared(
            self.useFixture(fixtures.TempDir()).path, 'hgx-h100', 4)
        self.name = str(uuid.uuid4())

    def test_bind(self):
        def check():
            self.process(self.report_twice)
            self.assert_sound()
            self.process(self.bind)
            self.assert_bound()
            self.process(self.unbind)
            self.process(self.report_twice)
            self.assert_nothing_left()

        self.sweep(lambda: self.process(self.get_ready),
                   lambda number: self.process(self.bind, number), check)
        self.say('bind of a group', 20)

    def test_unbind(self):
        def begin():
            self.process(self.get_ready)
            self.process(self.bind)
            self.assert_bound()

        def check():
            self.process(self.report_twice)
            self.assert_sound()
            self.process(self.unbind)
            self.process(self.report_twice)
            self.assert_nothing_left()

        self.sweep(begin,
                   lambda number: self.process(self.unbind, number), check)
        self.say('unbind of a group', 20)

    def get_ready(self, running):
        self.report_twice(running)
        for gpu in running.live.host().gpus:
            self.assertEqual('vfio-pci', gpu.driver)

    def report_twice(self, running):
        running.report()
        running.report()

    def bind(self, running):
        running.bind(*self.asked(running))

    def unbind(self, running):
        running.unbind(*self.asked(running))

    def asked(self, running):
        """Return Cyborg's arguments to the agent for the first pair."""
        group = next(group for gpu in running.live.host().gpus
                     for group in running.live.groups([gpu.address])
                     if group.profile == _PAIR)
        return str(group.leader), _PAIR, self.name

    def assert_sound(self):
        claims = self.journal()
        self.assertIn(len(claims), (0, 2))
        self.assertEqual(len(claims), len({
            claim['gpu'] for claim in claims}))
        self.assertLessEqual({claim['phase'] for claim in claims}, {'bound'})
        self.assertEqual(
            tuple({claim['fabric_partition'] for claim in claims}),
            self.world().active_partitions)
        self.assertEqual((), self.world().damage)

    def assert_bound(self):
        self.assert_sound()
        self.assertEqual(2, len(self.journal()))

    def assert_nothing_left(self):
        self.assert_sound()
        self.assertEqual([], self.journal())


class TakeRoleTest(kill_case.KillCase):
    """A GPU of mode auto takes a role."""

    prepared = False
    options = {'mode': 'auto', 'roles': ['passthrough', 'mig', 'vgpu'],
               'profiles': ['2g.10gb'], 'vgpu_types': ['A100X-10C']}

    def test_bind(self):
        self.use_placement()
        self.begin()
        self.hostname = f'host-{uuid.uuid4()}'
        self.process(self._start)
        self._check_idle()
        name = str(uuid.uuid4())
        kinds = itertools.cycle(self._asked)
        # One machine for all runs: each time it has to become idle again.
        self.points = self._attempt(None, (*next(kinds), name))
        self.assertEqual(1, len(self.claims))
        for number in scope.some(range(self.points)):
            self._attempt(number, (*next(kinds), name))
        self.say('a role taken', 20)

    def _attempt(self, number, asked):
        """Kill a bind before a step, or never; return how many it took."""
        self.process(lambda running: self._bind(running, asked), number)
        steps, self.claims = self.steps, self.journal()
        # The second report knows what the first wrote to Placement.
        self.process(lambda running: (running.report(), running.report()))
        self._check(bool([claim for claim in self.claims
                          if claim['phase'] == 'bound']))
        self.process(lambda running: (
            self._bind(running, asked), self._check_taken(),
            running.unbind(*asked)))
        self.process(lambda running: (running.report(), running.report()))
        self._check_idle()
        return steps

    @staticmethod
    def _bind(running, asked):
        # Without a server's allocation, so that the GPU is idle again at once.
        running.allocated = lambda item: None
        running.bind(*asked)

    def _start(self, running):
        """Report, and create the providers that Cyborg would create."""
        running.report()
        root = str(uuid.uuid4())
        self.cloud.post('/resource_providers', {
            'name': self.hostname, 'uuid': root})
        (device,) = running.report()
        for one in device.deployables:
            if one.resource_class.startswith('CUSTOM_'):
                self.cloud.put(f'/resource_classes/{one.resource_class}')
            self.cloud.post('/resource_providers', {
                'name': one.name, 'uuid': one.provider_uuid,
                'parent_provider_uuid': root})
            self.cloud.put(
                f'/resource_providers/{one.provider_uuid}/inventories', {
                    'resource_provider_generation': 0, 'inventories': {
                        one.resource_class: {
                            'total': one.num_accelerators}}})
        running.report()

    @property
    def _asked(self):
        """The arguments of a bind in each role, except for the handle."""
        found = []

        def read(running):
            (gpu,) = running.live.host().gpus
            for one in running.device(
                    gpu, running._offers(gpu)).deployables:
                handle = one.handles[0]
                if handle.asked_type:
                    found.append((str(handle.address), handle.asked_type))
            with open(f'{self.directory}/asked', 'w',
                      encoding='utf-8') as stream:
                stream.write('\n'.join(map(' '.join, found)))

        self.process(read)
        with open(f'{self.directory}/asked', encoding='utf-8') as stream:
            return [tuple(line.split()) for line in stream]

    def _reserved(self):
        """Return (reserved, total) of the GPU's providers, by label."""
        return {
            name.rpartition('_')[2]: (item['reserved'], item['total'])
            for name, provider in self.cloud.providers().items()
            if name.startswith(f'{self.hostname}_gpu_')
            for item in self.cloud.inventories(provider['uuid']).values()}

    def _check_idle(self):
        """Check that the GPU is idle and available in every role."""
        self._check(False)
        self.assertEqual({0}, {
            reserved for reserved, _total in self._reserved().values()})

    def _check_taken(self):
        self.assertEqual((1, 1), self._reserved()['passthrough'])

    def _check(self, is_taken):
        """Check that the whole GPU is available only if nothing is bound."""
        self.assertEqual(is_taken, bool(self.journal()))
        self.assertEqual((int(is_taken), 1), self._reserved()['passthrough'])
        self.assertEqual('nvidia' if is_taken else 'vfio-pci',
                         self.world().drivers.of(kill_case.GPU))
        closed = [label for label, (reserved, total)
                  in self._reserved().items() if reserved == total]
        self.assertEqual(2 if is_taken else 0, len(closed), closed)


class CleaningTest(kill_case.KillCase):
    """A whole GPU is cleaned for its next tenant."""

    prepared = False
    options = {'mode': 'passthrough'}

    def setUp(self):
        super().setUp()
        self.use_placement()

    def begin(self):
        """Start with a new machine, in a provider tree of its own."""
        super().begin()
        self.hostname = f'host-{uuid.uuid4()}'
        self.server = str(uuid.uuid4())

    def test_reset(self):
        self.sweep(self._returned, self._report, self._check)
        self.say('reset of a whole GPU', 12)

    def _report(self, number=None):
        return self.process(lambda running: running.report(), number)

    def _take(self, running):
        (device,) = running.report()
        (one,) = device.deployables
        self.cloud.post('/resource_providers', {
            'name': one.name, 'uuid': one.provider_uuid})
        self.cloud.put(
            f'/resource_providers/{one.provider_uuid}/inventories', {
                'resource_provider_generation': 0,
                'inventories': {_CLASS: {'total': 1}}})
        running.report()
        self.cloud.put(f'/allocations/{self.server}', {
            'allocations': {one.provider_uuid: {'resources': {_CLASS: 1}}},
            'project_id': 'p', 'user_id': 'u', 'consumer_generation': None,
            'consumer_type': 'INSTANCE'})

    def _returned(self):
        def work(running):
            self._take(running)
            running.report()

        self.process(work)
        self.assertEqual(gpu_cloud.USED, self._inventory())
        self.assertEqual(0, self._resets())
        self._give_back()

    def _give_back(self):
        self.cloud.delete(f'/allocations/{self.server}')

    def _check(self):
        if not self._inventory()[0]:
            # The next server gets a GPU that was reset, and the records say
            # that it was reset.
            self.assertEqual(1, self._resets())
            self.assertEqual('free', self._known()['state'])
            self.assertIn('cleaned', self._whats())
        elif not self._resets():
            self.assertNotIn('cleaned', self._whats())
            self.assertNotEqual('free', self._known()['state'])
        # The second report knows what the first has written to Placement.
        self.process(lambda running: (running.report(), running.report()))
        self.assertEqual((0, 0), self._inventory())
        self.assertIn(self._resets(), (1, 2))
        self.assertEqual('free', self._known()['state'])
        whats = self._whats()
        self.assertEqual('given', whats[0])
        self.assertLessEqual({'returned', 'cleaned'}, set(whats))
        self.assertLess(whats.index('returned'), whats.index('cleaned'))
        first = None
        for record in host_files.audit(self.state_path):
            if record.what == 'cleaned':
                first = first or record
                self.assertEqual(0, record.evidence['after']['processes'])
        self.assertEqual(self.server, first.subject)
        resets = self._resets()
        self._report()
        self.assertEqual((resets, whats), (self._resets(), self._whats()))

    def _inventory(self):
        """Return reserved and used of the GPU's provider."""
        provider = next(item['uuid'] for name, item
                        in self.cloud.providers().items()
                        if name.startswith(self.hostname))
        (item,) = self.cloud.inventories(provider).values()
        (used,) = self.cloud.usages(provider).values()
        return item['reserved'], used

    def _resets(self):
        return (self.gpu().resets if os.path.exists(self.hardware) else 0)

    def _known(self):
        return codec.encode(store.Store(self.state_path).read(
            model.PciAddress.parse(kill_case.GPU)).tenancy)

    def _whats(self):
        return [record.what for record
                in host_files.audit(self.state_path)]
