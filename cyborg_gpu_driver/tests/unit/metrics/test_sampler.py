# SPDX-License-Identifier: Apache-2.0

"""Samples of the hardware, and what a scrape shows of them."""

import dataclasses
import os
import threading

import fixtures

from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.nvml import access
from cyborg_gpu_driver.metrics import collect
from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.metrics import sampler
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base
from cyborg_gpu_driver.tests.unit.metrics import monitored

_SOON = 0.5


class _Case(base.SimulatedTestCase):

    MACHINE = 'a100x4-vfio'

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.now = 0.0
        self.platform = dataclasses.replace(
            self.platform, records=store.of(self.state_path))
        self.sampler = sampler.Sampler(self.platform, self.state_path,
                                       lambda: self.now)

    def scrape(self, name):
        """Return the values of a metric by the GPU's address."""
        return {labels['address']: value for labels, value
                in monitored.samples(collect.Collector(
                    self.state_path, 'host1', '1', self.sampler)).get(
                        definitions.PREFIX + name, ())}

    def report(self, mode):
        """Write the record of the first GPU, as a report does."""
        store.of(self.state_path).put(
            self.first, reported=gpu_record.Reported(
                '20b0', mode, gpu_record.ReportedFacts(), {}))


class SamplerTest(_Case):

    def test_a_scrape_has_the_latest_sample_and_its_age(self):
        self.assertEqual({}, self.scrape('temperature_celsius'))
        self.sampler.round()
        self.machine.set_health(str(self.first), celsius=70)
        self.now = 7.0
        self.assertEqual(31, self.scrape('temperature_celsius')[
            str(self.first)])
        self.assertEqual(dict.fromkeys(map(str, self.addresses), 7.0),
                         self.scrape('hardware_sample_age_seconds'))
        self.sampler.round()
        self.assertEqual(70, self.scrape('temperature_celsius')[
            str(self.first)])
        self.assertEqual({0.0}, set(self.scrape(
            'hardware_sample_age_seconds').values()))

    def test_a_stale_sample_is_left_out(self):
        self.sampler.round()
        self.now = sampler.STALE
        self.assertEqual({}, self.scrape('temperature_celsius'))
        self.assertEqual({sampler.STALE}, set(self.scrape(
            'hardware_sample_age_seconds').values()))
        self.sampler.round()
        self.assertEqual(4, len(self.scrape('temperature_celsius')))

    def test_a_gpu_that_falls_off_the_bus(self):
        self.sampler.round()
        self.machine.lose_gpu(str(self.first))
        for _ in range(2):
            self.sampler.round()
        self.assertEqual(2.0, self.scrape('hardware_failed_samples_total')[
            str(self.first)])
        self.assertEqual(1, len(self.log.about('has no sample')))

    def test_no_nvml(self):
        self.machine.unload_library()
        self.sampler.round()
        self.assertEqual({}, self.scrape('temperature_celsius'))
        self.machine.load_library()
        self.sampler.round()
        self.assertEqual(4, len(self.scrape('temperature_celsius')))


class HungTest(_Case):

    def setUp(self):
        super().setUp()
        self.addCleanup(self.answer_again)

    def answer_again(self):
        self.machine.hang_gpu(str(self.first), False)
        self.nvml.timeout = 30
        worker = deadline._workers.get(self.first)
        if worker is not None and worker.stuck:
            worker._late[0].answer.exception(scope.HANG)
        deadline.run(self.first, 30, 'nothing', int)

    def test_it_holds_up_neither_a_scrape_nor_the_others(self):
        self.sampler.round()
        self.machine.hang_gpu(str(self.first))
        others = set(map(str, self.addresses[1:]))
        waits = threading.Event()
        stuck = threading.Event()

        def hold(*arguments):
            waits.set()
            stuck.wait(scope.HANG)

        # This test decides how long the GPU's thread is busy.
        deadline._worker(self.first)._calls.put(
            deadline._Call('hold', hold, ()))
        self.assertTrue(waits.wait(scope.HANG))
        self.now = 30.0
        self.nvml.timeout = 30
        round_ = threading.Thread(target=self.sampler.round, daemon=True)
        round_.start()
        # While the round waits, scrapes have new samples of the other GPUs.
        while not all(self.scrape('hardware_sample_age_seconds')[name] == 0
                      for name in others):
            self.assertTrue(round_.is_alive())
        self.assertEqual(30.0, self.scrape('hardware_sample_age_seconds')[
            str(self.first)])
        self.assertEqual(4, len(self.scrape('temperature_celsius')))
        self.machine.hang_gpu(str(self.first), False)
        stuck.set()
        round_.join(scope.HANG)
        self.assertEqual(0.0, self.scrape('hardware_sample_age_seconds')[
            str(self.first)])

    def test_it_fails_at_once_from_then_on(self):
        self.machine.hang_gpu(str(self.first))
        self.nvml.timeout = _SOON
        for _ in range(3):
            self.sampler.round()
        self.assertEqual(3.0, self.scrape('hardware_failed_samples_total')[
            str(self.first)])
        self.assertNotIn(str(self.first), self.scrape('temperature_celsius'))
        self.assertEqual(3, len(self.scrape('temperature_celsius')))


class OpenTest(_Case):
    """Which GPUs' device nodes the exporter has open."""

    def opened(self):
        return {str(address) for address in self.addresses
                if os.getpid() in dict(self.machine.holders(str(address)))}

    def test_none_is_opened_while_a_whole_gpu_could_be(self):
        self.sampler.round()
        self.assertEqual(set(map(str, self.addresses)), self.opened())
        self.report('passthrough')
        for _ in range(2):
            self.sampler.round()
            self.assertEqual(set(), self.opened())
        self.assertEqual({}, self.scrape('temperature_celsius'))
        self.assertEqual(1, len(self.log.about(f'GPU {self.first} is a')))
        self.machine.stop_persistenced()
        self.machine.sriov_manage(str(self.first), enable=False)
        self.machine.bind_driver(str(self.first), 'vfio-pci')
        self.sampler.round()
        self.assertEqual(set(map(str, self.addresses[1:])), self.opened())
        self.assertEqual(3, len(self.scrape('temperature_celsius')))

    def test_a_gpu_of_several_roles_is_opened_while_parts_are_bound(self):
        self.report('auto')
        self.sampler.round()
        self.assertNotIn(str(self.first), self.opened())
        store.of(self.state_path).put(self.first, claims=(gpu_record.Claim(
            '0b0e4a4e-6b3c-4a51-9a43-3d7a4e5b2a10', self.first, self.first,
            'nvidia-474', '1g.5gb', gpu_record.Phase.BOUND),))
        self.sampler.round()
        self.assertIn(str(self.first), self.opened())

    def test_a_record_that_cannot_be_read(self):
        self.report('mig')
        with open(os.path.join(self.state_path, 'gpus', f'{self.first}.json'),
                  'w', encoding='utf-8') as stream:
            stream.write('{')
        self.sampler.round()
        self.assertEqual(set(), self.opened())

    def test_nobody_could_ask_for_a_gpu_to_be_closed(self):
        real = sampler.Sampler(
            dataclasses.replace(self.platform, simulated=False),
            self.state_path)
        real.round()
        self.assertEqual(set(), self.opened())
        self.nvml.access = access.Access(self.state_path)
        real.round()
        self.assertEqual(set(map(str, self.addresses)), self.opened())
        self.assertEqual(1, len(self.log.about('No GPU is queried')))

    def test_who_wants_nvml_alone_has_it(self):
        self.sampler.round()
        self.now = 1.0
        with self.nvml.alone():
            self.assertEqual(set(), self.opened())
            thread = threading.Thread(target=self.sampler.round)
            thread.start()
            thread.join(scope.HANG)
            self.assertEqual(set(), self.opened())
        self.assertEqual({1.0}, set(self.scrape(
            'hardware_sample_age_seconds').values()))
        self.assertEqual({0.0}, set(self.scrape(
            'hardware_failed_samples_total').values()))
