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

"""Policies that change while the released cyborg-agent runs."""

import configparser
import logging
import threading
import uuid

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import gpu_cloud

_SMALL, _LARGE = '1g.10gb', '3g.40gb'


def _fail(*_arguments):
    raise RuntimeError("can't start new thread")


class ReloadTest(gpu_cloud.GpuTestCase):

    starts_reported = True
    overrides = {
        'gpu': {'policies': 'slices'},
        'gpu_policy:slices': {
            'mode': 'mig', 'profiles': _SMALL,
            'match_address': gpu_cloud.GpuTestCase.gpu}}

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level='INFO'))

    def configure(self, **groups):
        """Change groups of cyborg.conf; ``gpu_policy_x`` is gpu_policy:x."""
        path = self.cloud.cloud.config_path
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(path, encoding='utf-8')
        for group, options in groups.items():
            name = group.replace('gpu_policy_', 'gpu_policy:')
            if not parser.has_section(name):
                parser.add_section(name)
            parser[name].update(options)
        with open(path, 'w', encoding='utf-8') as stream:
            parser.write(stream)

    def labels(self):
        return set(self.reserved())

    @scope.only_in_all
    def test_new_policies_without_a_restart(self):
        self.assertEqual({_SMALL}, self.labels())
        running = self.driver._running()
        self.configure(gpu={'policies': 'first, slices'},
                       gpu_policy_first={'mode': 'mig', 'profiles': _LARGE,
                                         'match_address': self.gpu})
        self.report()
        self.report()
        self.assertEqual({_LARGE}, self.labels())
        self.assertIsNot(running, self.driver._running())
        self.assertIn('first, slices', self.log.output)

    def test_a_mistake_leaves_all_as_it_is(self):
        before = self.everything()
        self.configure(gpu_policy_slices={'profiles': _LARGE,
                                          'mode': 'pie'})
        for _ in range(3):
            self.report()
        self.assertEqual(before, self.everything())
        profile = self.profile('CUSTOM_NVIDIA_1G_10GB')
        self.cloud.unbind(self.cloud.bind(profile))
        for expected in (self.cloud.cloud.config_path,
                         '[gpu_policy:slices] mode = pie'):
            self.assertEqual(1, self.log.output.count(expected))
        self.configure(gpu_policy_slices={'mode': 'mig'})
        self.report()
        self.report()
        self.assertEqual({_LARGE}, self.labels())

    @scope.only_in_all
    def test_an_agent_that_cannot_start_is_tried_again(self):
        self.configure(gpu_policy_slices={'profiles': _LARGE})
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_1G_10GB'))
        with fixtures.MonkeyPatch('cyborg_gpu_driver.agent.Agent', _fail):
            self.report()
            # Reports go on with the former settings.
            self.cloud.unbind(server)
            self.report()
        self.assertEqual(1, self.log.output.count(
            "not used yet: can't start new thread"))
        self.assertIn(_SMALL, self.labels())
        self.report()
        self.assertEqual({_LARGE}, self.labels())

    def test_what_is_in_use_keeps_its_place(self):
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_1G_10GB'))
        placements = self.placements()
        self.configure(gpu_policy_slices={'profiles': _LARGE})
        self.report()
        self.report()
        self.assertEqual(placements, self.placements())
        self.assertEqual({_SMALL}, self.labels())
        total, reserved = self.reserved()[_SMALL]
        self.assertEqual(total, reserved)
        self.cloud.unbind(server)
        self.report()
        self.assertEqual({_LARGE}, self.labels())
        self.assertEqual([], self.placements())

    @scope.only_in_all
    def test_a_bind_under_way_has_the_settings_that_it_began_with(self):
        before, bind, report, reloaded = self.bind_during_a_reload()
        with self.gpu_held():
            bind.start()
            self.wait_for_call(before)
            report.start()
            self.assertTrue(reloaded.wait(scope.HANG))
            self.assertIsNot(before, self.driver._running())
            self.assertEqual([], self.errors)
        bind.join(scope.HANG)
        report.join(scope.HANG)
        self.assertEqual([], self.errors)
        (entry,) = self.journal()
        self.assertIn(self.handle, str(entry))
        self.driver.unbind(*self.asked)
        self.report()
        self.assertEqual({_LARGE}, self.labels())

    @scope.only_in_all
    def test_an_unbind_after_the_reload_cancels_a_bind_before_it(self):
        before, bind, report, reloaded = self.bind_during_a_reload()
        with self.gpu_held():
            bind.start()
            self.wait_for_call(before)
            report.start()
            self.assertTrue(reloaded.wait(scope.HANG))
            self.driver.unbind(*self.asked)
        bind.join(scope.HANG)
        report.join(scope.HANG)
        self.assertEqual([exception.BindAbandoned],
                         [type(error) for error in self.errors])
        self.assertEqual([], self.placements())

    def bind_during_a_reload(self):
        """Start a bind that waits for its GPU while a report reloads."""
        (device,) = self.driver._running().report()
        handle = device.deployables[0].handles[0]
        self.handle = str(uuid.uuid4())
        self.asked = str(handle.address), handle.asked_type, self.handle
        self.configure(gpu_policy_slices={'profiles': _LARGE})
        # The change takes effect with the next report.
        self.driver.discover()
        self.without_allocations()
        self.errors = []

        def bind():
            try:
                self.driver.bind(*self.asked)
            except Exception as error:
                self.errors.append(error)

        return (self.driver._running(), threading.Thread(target=bind),
                threading.Thread(target=self.driver.discover),
                self.said('The configuration files have changed'))

    def said(self, text):
        """Return an event that is set when the driver has logged a text."""
        event = threading.Event()

        class Handler(logging.Handler):
            def emit(self, record):
                if text in record.getMessage():
                    event.set()

        logger = logging.getLogger('cyborg_gpu_driver.driver')
        handler = Handler()
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)
        return event

    def gpu_held(self):
        return locks.gpu(self.state_path,
                         model.PciAddress.parse(self.gpu))

    def wait_for_call(self, running):
        """Wait until the agent carries out a call."""
        mutex = self.driver._mutex
        for _ in range(scope.HANG * 100):
            with mutex:
                if self.driver._calls[running]:
                    return
                mutex.wait(0.01)
        self.fail('the bind has not begun')
