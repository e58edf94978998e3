# SPDX-License-Identifier: Apache-2.0

"""No report deletes a provider, because nova-compute may have it cached."""

import os

from cyborg import context
from cyborg.objects import attach_handle

from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests import unreadable
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import host_files
from demo_lib import nova_part

_ONE, _TWO = '0000:07:00.0', '0000:0f:00.0'
_SMALL, _LARGE = '1g.10gb', '3g.40gb'


class WithdrawalTest(gpu_cloud.GpuTestCase):

    starts_reported = True
    overrides = {
        'gpu': {'policies': 'slices'},
        'gpu_policy:slices': {'mode': 'mig', 'profiles': f'{_SMALL},{_LARGE}'}}

    def restart(self, **options):
        """Restart the agent with other options of ``[gpu]``, and report."""
        conf = self.driver._conf
        for option, value in options.items():
            conf.set_override(option, value, group='gpu')
            self.addCleanup(conf.clear_override, option, group='gpu')
        self.end_agent()
        type(self.driver).__init__(self.driver)
        self.report()

    def take_out(self):
        """Start the machine without its first GPU."""
        self.restart(
            ignored_devices=[],
            simulate=host_files.write_host(self.state_path, [
                {'model': 'a100-80', 'address': _TWO, 'numa_node': 3,
                 'mig': True, 'vfs': 'all', 'framework': 'mdev'}]),
            simulate_state=os.path.join(self.state_path, 'other.json'))

    def put_back(self):
        self.restart(simulate=self.machine, simulate_state=self.hardware_path)

    def handles(self):
        return {item.uuid for item in attach_handle.AttachHandle.list(
            context.get_admin_context())}

    def assert_withdrawn(self, *expected):
        """Check which (GPU, profile) cannot be allocated, and nothing else."""
        found = self.cloud.placement.snapshot()
        self.assertEqual(self.untouched['placement'].keys(), found.keys())
        self.assertEqual(
            {self.name(label, gpu) for gpu, label in expected},
            {name for name, provider in found.items()
             if names.WITHDRAWN in provider['traits']})
        for gpu in (_ONE, _TWO):
            for label, (total, reserved) in self.reserved(
                    gpu, withdrawn=True).items():
                self.assertEqual(
                    total if (gpu, label) in expected else 0, reserved)
        self.assertEqual(self.known, self.handles())

    def test_what_is_not_offered_any_more_stays_and_comes_back(self):
        self.known = self.handles()
        large = self.profile('CUSTOM_NVIDIA_3G_40GB')
        self.change_policy('slices', profiles=[_SMALL])
        self.report()
        self.assert_withdrawn((_ONE, _LARGE), (_TWO, _LARGE))
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind, large)
        self.restart(ignored_devices=[_ONE])
        expected = (_ONE, _SMALL), (_ONE, _LARGE), (_TWO, _LARGE)
        self.assert_withdrawn(*expected)
        small = self.profile('CUSTOM_NVIDIA_1G_10GB')
        server = self.cloud.bind(small)
        self.report()
        self.assert_withdrawn(*expected)
        self.cloud.unbind(server)
        self.take_out()
        self.assert_withdrawn(*expected)
        self.change_policy('slices', profiles=[_SMALL, _LARGE])
        self.put_back()
        self.assertEqual(self.untouched['placement'],
                         self.cloud.placement.snapshot())
        self.assertEqual(self.known, self.handles())
        self.cloud.unbind(self.cloud.bind(large))

    def test_a_running_agent_does_not_read_its_files_again(self):
        """Another program may be writing them, or the disk may be full."""
        before = self.everything()
        path = self.cloud.cloud.config_path
        with open(path, encoding='utf-8') as stream:
            text = stream.read()
        for content in (text.replace(f',{_LARGE}', ''), ''):
            self.assertNotEqual(text, content)
            with open(path, 'w', encoding='utf-8') as stream:
                stream.write(content)
            self.report()
            # A worker that the master process has replaced.
            self.end_agent()
        self.report()
        self.assertEqual(before, self.everything())

    def test_a_record_that_an_agent_cannot_read_when_it_starts(self):
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_3G_40GB'))
        (claim,) = self.driver._running().records.claims()
        self.report()
        gpu = str(claim.gpu)
        before = self.reserved(gpu)
        path = self.driver._running().records.path(claim.gpu)
        self.end_agent()
        with unreadable.file(path):
            self.cloud.report()
            self.assertEqual({_SMALL: (7, 7), _LARGE: (2, 1)},
                             self.reserved(gpu))
            (other,) = {_ONE, _TWO} - {gpu}
            self.assertEqual((7, 0), self.reserved(other)[_SMALL])
        self.report()
        self.assertEqual(before, self.reserved(gpu))
        self.cloud.unbind(server)

    def test_a_provider_that_an_operator_deletes_is_forgotten(self):
        self.known = self.handles()
        self.change_policy('slices', profiles=[_SMALL])
        self.report()
        name = self.name(_LARGE, _ONE)
        self.cloud.placement.delete('/resource_providers/'
                                    + self.cloud.provider(name)['uuid'])
        self.report()
        self.assertNotIn(name, self.cloud.placement.providers())
        self.assertEqual(2, len(self.known - self.handles()))
        self.change_policy('slices', profiles=[_SMALL, _LARGE])
        self.report()
        self.assertEqual(self.untouched['placement'].keys(),
                         self.cloud.placement.snapshot().keys())
        self.assertEqual({_SMALL: (7, 0), _LARGE: (2, 0)}, self.reserved())
