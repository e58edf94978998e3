# SPDX-License-Identifier: Apache-2.0


"""The limits of NVML calls, counted at the C library.

On real GPUs a call takes from microseconds to a second, and calls queue
behind each other. Therefore the limits are for calls, not for time.
"""

import json
import pathlib
import sys
import uuid

import fixtures
import pynvml
import yaml
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import agent
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator.library import library
from cyborg_gpu_driver.tests import empty_placement

LARGE = 3
"""The limit for a large host's report, as a multiple of a plain host's."""
PER_HOST = 3
"""One call to NVML, and two to the fabric manager."""
PER_GPU = 8
PER_CHECK = 5
"""The calls that ask one GPU for its health."""
PER_INSTANCE = 2
PER_BIND = 8 + PER_GPU + 7 * PER_INSTANCE
"""A bind changes its GPU, and reads it again with up to seven slices."""


class BudgetCase(base.BaseTestCase):

    def new_agent(self, host='dgx-a100-80'):
        directory = self.useFixture(fixtures.TempDir()).path
        conf = cfg.ConfigOpts()
        gpu_conf.register_opts(conf)
        conf([], default_config_files=[])
        conf.set_override('simulate', host, group='gpu')
        conf.set_override('state_path', directory, group='gpu')
        # The calls of the thread for health events would be counted as well.
        conf.set_override('health_events', False, group='gpu')
        return agent.Agent(conf, policies.read(conf), 'host1',
                           empty_placement.EmptyPlacement)

    def work(self, operation, *arguments):
        """Return how many function calls an operation makes in this thread.

        Unlike time, the number does not depend on the machine's other load,
        except for a few calls of a lock that the operation waits for.
        """
        calls = 0

        def count(_frame, event, _argument):
            nonlocal calls
            calls += event == 'call'

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            operation(*arguments)
        finally:
            sys.setprofile(before)
        return calls


class TestCallBudget(BudgetCase):

    def setUp(self):
        super().setUp()
        self.addCleanup(_uninstall_all)
        self.agent = self.new_agent()
        self.devices = self.agent.report()
        self.machine = pynvml.nvmlLib.machine

    def _count(self, operation, *arguments):
        self.machine.reset_calls()
        operation(*arguments)
        return sum(self.machine.calls.values())

    def _handles(self, profile):
        """Return the arguments of Cyborg's calls for a profile's handles."""
        return [
            (str(handle.address), handle.asked_type, str(uuid.uuid4()))
            for device in self.devices for deployable in device.deployables
            if deployable.offer.profile == profile
            for handle in deployable.handles]

    def _instances(self):
        with self.machine.operation():
            return sum(len(gpu.state.instances) for gpu in self.machine.gpus)

    def test_a_report_on_a_full_host(self):
        for handle in self._handles('1g.10gb'):
            self.agent.bind(*handle)
        self.assertEqual(56, self._instances())
        self.agent.report()
        calls = self._count(self.agent.report)
        # One call for each GPU would not tell 56 instances from none.
        self.assertGreater(calls, 8)
        self.assertLessEqual(
            calls, (PER_GPU + PER_CHECK) * 8 + PER_INSTANCE * 56)

    def test_a_report_on_an_empty_host(self):
        self.agent.report()
        calls = self._count(self.agent.report)
        self.assertGreater(calls, 0)
        self.assertLessEqual(calls,
                             PER_HOST + (PER_GPU + PER_CHECK) * 8)

    def test_every_bind_until_the_gpus_are_full(self):
        for number, handle in enumerate(self._handles('1g.10gb'), 1):
            calls = self._count(self.agent.bind, *handle)
            self.assertGreater(calls, 0)
            self.assertLessEqual(calls, PER_BIND)
            self.assertEqual(number, self._instances())

    def test_claims_elsewhere_make_a_bind_no_dearer(self):
        handles = self._handles('1g.10gb')
        last = handles.pop()
        self.agent.bind(*last)
        self.agent.unbind(*last)
        alone = self.work(self.agent.bind, *last)
        self.agent.unbind(*last)
        # The claims of the other seven GPUs come first.
        for handle in handles[:49]:
            self.agent.bind(*handle)
        among = self.work(self.agent.bind, *last)
        self.assertGreater(alone, 100)
        # Only the list of the mdevs, which is one for all GPUs, is longer. A
        # bind reads it before and after.
        self.assertLess(among, 3 * alone)


class TestLargeHost(BudgetCase):

    def write(self, name, vfs, types):
        """Write a host of two GPUs of a model. Return the path of its file."""
        model = yaml.safe_load((
            files.HERE / 'models' / 'a100-80.yaml').read_text())
        known = model['vgpu_types']
        model['sriov']['totalvfs'] = vfs
        model['vgpu_types'] = [*known, *(
            {**known[number % len(known)], 'id': 5000 + number,
             'name': f'X{number}-4C'}
            for number in range(types - len(known)))]
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (directory / 'models').mkdir()
        (directory / 'models' / f'{name}.yaml').write_text(
            yaml.safe_dump(model))
        path = directory / 'host.yaml'
        path.write_text(json.dumps({
            'driver_version': '550.144.02', 'gpus': [
                {'model': name, 'address': address, 'mig': True,
                 'vfs': 'all', 'framework': 'mdev'}
                for address in ('0000:07:00.0', '0000:0f:00.0')]}))
        return path

    def report(self, vfs, types):
        """Return the work of a report when nothing has changed."""
        path = self.write('tested', vfs, types)
        with fixtures.MonkeyPatch('cyborg_gpu_driver.simulator.files.HERE',
                                  path.parent):
            tested = self.new_agent(str(path))
            try:
                for _ in range(3):
                    devices = tested.report()
                self.assertEqual(2, len(devices))
                return self.work(tested.report)
            finally:
                _uninstall_all()

    def test_64_functions_and_100_types_on_each_gpu(self):
        plain = self.report(20, 0)
        large = self.report(64, 100)
        self.assertGreater(large, plain)
        self.assertLess(large, LARGE * plain)


def _uninstall_all():
    while isinstance(pynvml.nvmlLib, library.Library):
        pynvml.nvmlLib.machine.uninstall()
