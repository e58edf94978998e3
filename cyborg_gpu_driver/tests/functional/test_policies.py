# SPDX-License-Identifier: Apache-2.0

"""Policies that change between two starts of the released cyborg-agent."""

import configparser

from oslo_config import cfg

from cyborg_gpu_driver.tests.functional import gpu_cloud

_SMALL, _LARGE = '1g.10gb', '3g.40gb'


class PolicyChangeTest(gpu_cloud.GpuTestCase):

    starts_reported = True
    overrides = {
        'gpu': {'policies': 'slices'},
        'gpu_policy:slices': {
            'mode': 'mig', 'profiles': _SMALL,
            'match_address': gpu_cloud.GpuTestCase.gpu}}

    def change_profiles(self):
        """Write another profile into cyborg.conf."""
        path = self.cloud.cloud.config_path
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(path, encoding='utf-8')
        parser['gpu_policy:slices']['profiles'] = _LARGE
        with open(path, 'w', encoding='utf-8') as stream:
            parser.write(stream)

    def restart(self):
        """Restart the agent, which reads its files like a new process."""
        cfg.CONF.reload_config_files()
        self.end_agent()
        type(self.driver).__init__(self.driver)

    def test_a_running_agent_does_not_read_its_files_again(self):
        """Another program may be writing them, or the disk may be full."""
        before = self.everything()
        self.change_profiles()
        self.report()
        with open(self.cloud.cloud.config_path, 'w', encoding='utf-8'):
            pass
        for _ in range(2):
            self.report()
            # A worker that the master process has replaced.
            self.end_agent()
        self.report()
        self.assertEqual(before, self.everything())
