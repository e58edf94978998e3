# SPDX-License-Identifier: Apache-2.0

"""What the DevStack plugin does in stack.sh, unstack.sh and clean.sh."""

import configparser
import stat
import subprocess

from oslo_config import cfg

from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.conf import weigher
from cyborg_gpu_driver.tests.unit.devstack import case

CONF = 'etc/cyborg.conf'


def after(record, phase):
    """Return the calls of one phase."""
    found, here = [], False
    for call in record:
        if call[0] == 'phase':
            here = call[2] == phase
        elif here:
            found.append(call)
    return found


class PhasesTest(case.PluginTest):

    def test_each_phase_does_its_own(self):
        record = self.stack(settings=case.SIMULATED)
        self.assertEqual([
            ('phase', 'stack', 'pre-install'),
            ('phase', 'stack', 'install'),
            ('setup_develop', '-bindep', str(case.ROOT)),
            ('phase', 'stack', 'post-config'),
            ('iniset', CONF, 'keystone_authtoken', 'service_token_roles',
             'service'),
            ('iniset', CONF, 'agent', 'enabled_drivers',
             'fake_driver,cyborg_gpu_driver'),
            ('iniset', CONF, 'DEFAULT', 'host', 'devstack1'),
            ('iniset', CONF, 'agent', 'resource_provider_name', 'devstack1'),
            ('sudo', 'install', '-d', '-o', self.user(), 'cyborg/gpu',
             'cyborg/gpu/simulated'),
            ('iniset', CONF, 'gpu', 'state_path', 'cyborg/gpu/simulated'),
            *(('iniset', CONF, 'gpu_cloud', name, value) for name, value in (
                ('auth_type', 'password'),
                ('auth_url', 'http://192.0.2.1/identity'),
                ('username', 'admin'), ('password', 'secret'),
                ('project_name', 'admin'), ('user_domain_id', 'default'),
                ('project_domain_id', 'default'),
                ('region_name', 'RegionOne'))),
            ('iniset', CONF, 'gpu', 'simulate', 'mixed'),
            ('iniset', CONF, 'gpu', 'simulate_state',
             'cyborg/gpu/simulated/host.json'),
            ('phase', 'stack', 'extra'),
            ('wait_for_service', '60', 'http://192.0.2.1/accelerator/v2'),
            ('openstack', 'accelerator', 'device', 'profile', 'create', 'gpu',
             '[{"resources:CUSTOM_NVIDIA_1G_10GB": "1"}]'),
            ('openstack', 'flavor', 'create', '--ram', '512', '--disk', '1',
             '--vcpus', '1', 'm1.gpu'),
            ('openstack', 'flavor', 'set', '--property',
             'accel:device_profile=gpu', 'm1.gpu'),
            ('phase', 'stack', 'test-config')], record)
        # The library read the file and offers the requested resource.
        self.assertNotIn('No GPU of this machine offers', self.done.stderr)
        # cyborg-gpu doctor ran, and its findings did not stop stack.sh.
        self.assertIn('severity', self.done.stdout)
        self.assertIn('warning: cyborg-gpu doctor', self.done.stderr)
        self.check_again()

    def check_again(self):
        """A second stack.sh changes nothing."""
        before = self.configuration()
        record = self.stack('post-config', 'extra', settings=case.SIMULATED)
        self.assertEqual(before.split(), self.configuration().split())
        self.assertEqual(
            [('wait_for_service', '60', 'http://192.0.2.1/accelerator/v2'),
             ('openstack', 'flavor', 'set', '--property',
              'accel:device_profile=gpu', 'm1.gpu')],
            after(record, 'extra'))

    def user(self):
        return subprocess.run(['id', '-un'], capture_output=True, check=True,
                              encoding='utf-8').stdout.strip()

    def test_what_is_no_longer_set_goes(self):
        self.stack('post-config', settings={
            **case.SIMULATED, 'CYBORG_GPU_POLICIES': 'all',
            'CYBORG_GPU_POLICY_all': 'mode=passthrough'})
        self.stack('post-config', settings={
            **case.SIMULATED, 'CYBORG_GPU_CLOUD_USER': ''})
        for gone in ('gpu_policy', 'policies', 'gpu_cloud'):
            self.assertNotIn(gone, self.configuration())

    def test_nothing_where_cyborg_is_not(self):
        record = self.stack(settings=case.SIMULATED, services='n-api,n-cpu')
        self.assertEqual({'phase'}, {call[0] for call in record})
        self.assertNotIn('gpu', self.configuration())

    def test_a_controller_gets_no_driver(self):
        record = self.stack(settings=case.SIMULATED,
                            services='n-api,cyborg-api,cyborg-cond')
        self.assertEqual([], after(record, 'install'))
        self.assertEqual([('iniset', CONF, 'keystone_authtoken',
                           'service_token_roles', 'service')],
                         after(record, 'post-config'))
        self.assertEqual(4, len(after(record, 'extra')))

    def test_placement_names_candidates_by_chance(self):
        path = self.work / 'etc' / 'placement.conf'
        for services, count in (('cyborg-api', 0),
                                ('placement-api', 2),
                                ('cyborg-api,placement-api', 2)):
            record = self.stack('post-config', settings=case.SIMULATED,
                                services=services)
            self.assertEqual(
                [('iniset', 'etc/placement.conf', 'placement', *option)
                 for option in (('randomize_allocation_candidates', 'True'),
                                ('allocation_conflict_retry_count', '1'))
                 ][:count],
                [call for call in record if 'placement' in call])
        self.unstack('unstack', settings=case.SIMULATED)
        self.assertNotIn('=', path.read_text(encoding='utf-8'))

    def test_scheduler_gets_weigher_and_filter_if_wanted(self):
        path = self.work / 'etc' / 'nova.conf'
        path.parent.mkdir()
        for policy, services, expected in (
                ('', f'{case.SERVICES},n-sch', False),
                ('quiet', case.SERVICES, False),
                ('quiet', 'n-sch,cyborg-api', False),
                ('quiet', f'{case.SERVICES},n-sch', True)):
            path.write_text('[filter_scheduler]\nenabled_filters = A,B\n',
                            encoding='utf-8')
            self.stack('post-config', services=services, settings={
                **case.SIMULATED, 'CYBORG_GPU_STRATEGY': policy})
            lines = path.read_text(encoding='utf-8').splitlines()
            self.assertEqual(expected, len(lines) > 2, (policy, services))
        conf = cfg.ConfigOpts()
        conf.register_opts([
            cfg.ListOpt('enabled_filters'), cfg.ListOpt('weight_classes'),
            cfg.MultiStrOpt('available_filters')], group='filter_scheduler')
        conf.register_opts(weigher.OPTS, group=weigher.GROUP)
        conf(['--config-file', str(path)], default_config_dirs=[])
        self.assertEqual(['A', 'B', 'GpuFilter'],
                         conf.filter_scheduler.enabled_filters)
        self.assertEqual(
            {'nova.scheduler.filters.all_filters',
             'cyborg_gpu_driver.nova.filter.GpuFilter'},
            set(conf.filter_scheduler.available_filters))
        self.assertIn('cyborg_gpu_driver.nova.weigher.GpuWeigher',
                      conf.filter_scheduler.weight_classes)
        self.assertEqual('quiet', conf.gpu_weigher.strategy)

    def test_a_compute_node_makes_nothing_in_the_cloud(self):
        record = self.stack(settings=case.SIMULATED,
                            services='n-cpu,cyborg-agent')
        self.assertIn(('setup_develop', '-bindep', str(case.ROOT)), record)
        self.assertEqual([], after(record, 'extra'))
        self.assertNotIn('keystone_authtoken', self.configuration())


class DriversTest(case.PluginTest):

    def drivers(self, enabled):
        self.stack('post-config', services='cyborg-agent', settings={
            **case.SIMULATED, 'CYBORG_ENABLED_DRIVERS': enabled})
        parser = configparser.ConfigParser()
        parser.read(self.conf)
        return parser['agent']['enabled_drivers']

    def test_ours_joins_the_others(self):
        for enabled, expected in (
                ('fake_driver', 'fake_driver,cyborg_gpu_driver'),
                ('fake_driver, pci_driver',
                 'fake_driver,pci_driver,cyborg_gpu_driver'),
                ('cyborg_gpu_driver,fake_driver',
                 'fake_driver,cyborg_gpu_driver'),
                ('cyborg_gpu_driver', 'cyborg_gpu_driver')):
            self.assertEqual(expected, self.drivers(enabled))


class RolesTest(case.PluginTest):

    def test_those_of_the_site_stay(self):
        self.conf.parent.mkdir()
        self.conf.write_text('[keystone_authtoken]\n'
                             'service_token_roles = nova_service\n',
                             encoding='utf-8')
        record = self.stack('post-config', services='cyborg-api',
                            settings=case.SIMULATED)
        self.assertEqual([], after(record, 'post-config'))


class PoliciesTest(case.PluginTest):

    def test_become_groups_that_the_library_reads(self):
        # With iniset, the shell would expand *A100* to file names.
        (self.work / 'top' / 'an-A100-guide').touch()
        self.stack('post-config', services='cyborg-agent', settings={
            **case.SIMULATED, 'CYBORG_GPU_POLICIES': 'slices,rest',
            'CYBORG_GPU_POLICY_slices':
                'mode=mig;profiles=1g.10gb,3g.40gb;match_model=*A100*',
            'CYBORG_GPU_POLICY_rest': 'mode=passthrough'})
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[str(self.conf)],
             default_config_dirs=[])
        slices, rest = policies.read(conf).policies
        self.assertEqual(('slices', ('1g.10gb', '3g.40gb'), ('*A100*',)),
                         (slices.name, slices.profiles, slices.match_model))
        self.assertEqual('passthrough', rest.mode.value)

    def test_what_the_library_refuses_ends_the_run(self):
        record = self.devstack(
            'stack', 'post-config', 'extra', settings={
                **case.SIMULATED, 'CYBORG_GPU_POLICIES': 'all',
                'CYBORG_GPU_POLICY_all': 'mode=whole'})
        self.assertNotEqual(0, self.done.returncode)
        self.assertIn('gpu_policy:all', self.done.stderr)
        self.assertIn('die: cyborg_gpu_driver cannot work with',
                      self.done.stderr)
        self.assertEqual([], after(record, 'extra'))


class MachineTest(case.PluginTest):
    """A machine with real GPUs."""

    def test_gets_a_helper_and_the_unit(self):
        record = self.stack('post-config', settings=case.REAL)
        bin_dir = case.BIN_DIR
        self.assertIn(
            ('iniset', CONF, 'cyborg_gpu_privileged', 'helper_command',
             f'sudo {bin_dir}/privsep-helper --config-file {CONF}'), record)
        self.assertEqual(
            [('sudo', 'systemctl', 'daemon-reload'),
             ('sudo', 'systemctl', 'enable', 'cyborg-gpu-restore.service')],
            record[-2:])
        self.assertIn(('iniset', CONF, 'gpu', 'state_path', 'cyborg/gpu'),
                      record)
        self.assertNotIn('simulate', self.configuration())
        # Cyborg and Nova agree on the machine's name by themselves.
        self.assertNotIn('host =', self.configuration())
        unit = self.unit.read_text(encoding='utf-8').splitlines()
        self.assertEqual(0o644, stat.S_IMODE(self.unit.stat().st_mode))
        self.assertIn('Before = devstack@n-cpu.service '
                      'devstack@cyborg-agent.service', unit)
        self.assertIn('Before=nova-compute.service '
                      'openstack-nova-compute.service', unit)
        self.assertIn(f'RequiresMountsFor = {self.state}', unit)
        self.assertIn(f'ReadWritePaths = -{self.state}', unit)
        self.assertEqual(
            [f'ExecStart={bin_dir}/cyborg-gpu --config-file {self.conf} '
             'layout restore'],
            # DevStack keeps the spaces of a line that it changes.
            [line.replace(' = ', '=') for line in unit
             if line.startswith('ExecStart')])
        # The machine gets the same again.
        self.stack('post-config', settings=case.REAL)
        self.assertEqual(
            unit, self.unit.read_text(encoding='utf-8').splitlines())

    def test_is_warned_of_a_second_driver(self):
        self.stack('post-config', settings={
            **case.REAL,
            'CYBORG_ENABLED_DRIVERS': 'fake_driver,nvidia_gpu_driver'})
        self.assertIn('warning: CYBORG_ENABLED_DRIVERS has nvidia_gpu_driver',
                      self.done.stderr)

    def test_offers_whole_gpus_unless_told_otherwise(self):
        record = self.stack('extra', services='n-api,cyborg-api',
                            settings=case.REAL)
        self.assertIn(('openstack', 'accelerator', 'device', 'profile',
                       'create', 'gpu', '[{"resources:PGPU": "1"}]'), record)


class ResourcesTest(case.PluginTest):

    SERVICES = 'n-api,cyborg-api'

    def extra(self, services=SERVICES, **settings):
        return after(self.stack('extra', services=services, settings={
            **case.SIMULATED, **settings}), 'extra')

    def test_ask_for_what_is_set(self):
        record = self.extra(
            CYBORG_GPU_PROFILE='slice', CYBORG_GPU_FLAVOR='g1.slice',
            CYBORG_GPU_RESOURCE='CUSTOM_NVIDIA_3G_40GB',
            CYBORG_GPU_TRAITS='CUSTOM_GPU_ARCH_AMPERE,CUSTOM_GPU_NUMA_0',
            CYBORG_GPU_FLAVOR_RAM='8192', CYBORG_GPU_FLAVOR_DISK='20',
            CYBORG_GPU_FLAVOR_VCPUS='4')
        self.assertEqual(
            [('openstack', 'accelerator', 'device', 'profile', 'create',
              'slice',
              '[{"resources:CUSTOM_NVIDIA_3G_40GB": "1", '
              '"trait:CUSTOM_GPU_ARCH_AMPERE": "required", '
              '"trait:CUSTOM_GPU_NUMA_0": "required"}]'),
             ('openstack', 'flavor', 'create', '--ram', '8192', '--disk',
              '20', '--vcpus', '4', 'g1.slice'),
             ('openstack', 'flavor', 'set', '--property',
              'accel:device_profile=slice', 'g1.slice')], record[1:])

    def test_are_left_out_where_that_is_asked_for(self):
        self.assertEqual([], self.extra(CYBORG_GPU_PROFILE='',
                                        CYBORG_GPU_FLAVOR=''))
        self.assertEqual(
            ['wait_for_service', 'openstack'],
            [call[0] for call in self.extra(CYBORG_GPU_FLAVOR='')])

    def test_a_name_that_is_part_of_another_is_none(self):
        (self.work / 'profiles').write_text('gpu-old\nxgpu\n',
                                            encoding='utf-8')
        self.assertEqual(
            ('openstack', 'accelerator', 'device', 'profile', 'create'),
            self.extra()[1][:5])

    def test_a_silent_api_is_said(self):
        self.devstack('stack', 'extra', services=self.SERVICES,
                      settings={**case.SIMULATED, 'API_IS_DOWN': 'True'})
        self.assertNotEqual(0, self.done.returncode)
        self.assertIn('die: cyborg-api does not answer at '
                      'http://192.0.2.1/accelerator/v2', self.done.stderr)

    def test_what_nobody_offers_is_said(self):
        self.stack('post-config', 'extra', services='cyborg-agent',
                   settings={**case.SIMULATED,
                             'CYBORG_GPU_RESOURCE': 'CUSTOM_NVIDIA_1G_5GB'})
        self.assertIn('warning: No GPU of this machine offers '
                      'CUSTOM_NVIDIA_1G_5GB now', self.done.stderr)
        self.assertIn('CUSTOM_NVIDIA_7G_80GB PGPU', self.done.stderr)


class UnstackTest(case.PluginTest):

    def test_leaves_what_cyborg_wrote(self):
        self.stack('post-config',
                   settings={**case.SIMULATED, 'ONLY_CYBORG': 'True'})
        before = self.configuration()
        self.stack('post-config', settings={
            **case.SIMULATED, 'CYBORG_GPU_POLICIES': 'all',
            'CYBORG_GPU_POLICY_all': 'mode=passthrough'})
        self.assertNotEqual(before, self.configuration())
        more = '\n[site]\noption = value\n'
        self.conf.write_text(self.configuration() + more, encoding='utf-8')
        self.unstack('unstack', settings=case.SIMULATED)
        self.assertEqual(before + more, self.configuration())
        # The next stack.sh starts with a new database and a new host.
        self.assertEqual([], list(self.state.iterdir()))

    def test_leaves_what_the_site_set(self):
        self.stack('post-config', settings=case.SIMULATED)
        text = self.configuration().replace('devstack1', 'compute7')
        self.conf.write_text(text.replace('= service', '= nova_service'),
                             encoding='utf-8')
        self.unstack('unstack', settings=case.SIMULATED)
        for line in ('host = compute7', 'resource_provider_name = compute7',
                     'service_token_roles = nova_service',
                     'enabled_drivers = fake_driver'):
            self.assertIn(f'{line}\n', self.configuration())

    def test_takes_the_unit_away(self):
        self.stack('post-config', settings=case.REAL)
        self.assertTrue(self.unit.exists())
        record = self.unstack('unstack', settings=case.REAL)
        self.assertEqual(
            [('sudo', 'systemctl', 'disable', 'cyborg-gpu-restore.service'),
             ('sudo', 'rm', '-f', 'systemd/cyborg-gpu-restore.service'),
             ('sudo', 'systemctl', 'daemon-reload')],
            [call for call in record if call[0] == 'sudo'][:3])
        self.assertFalse(self.unit.exists())
        self.assertNotIn('cyborg_gpu', self.configuration())

    def test_twice_and_without_stack(self):
        nothing = [('phase', 'unstack', ''),
                   ('sudo', 'rm', '-rf', 'cyborg/gpu/simulated')]
        self.assertEqual(nothing, self.unstack('unstack',
                                               settings=case.SIMULATED))
        self.stack('post-config', settings=case.SIMULATED)
        self.unstack('unstack', settings=case.SIMULATED)
        self.assertEqual(nothing, self.unstack('unstack',
                                               settings=case.SIMULATED))


class CleanTest(case.PluginTest):

    def test_takes_the_rest_away(self):
        self.stack('post-config', settings=case.SIMULATED)
        record = self.unstack('unstack', 'clean', settings=case.SIMULATED)
        self.assertEqual([('phase', 'clean', ''),
                          ('sudo', 'rm', '-rf', 'cyborg/gpu/simulated'),
                          ('pip_uninstall', 'cyborg_gpu_driver'),
                          ('sudo', 'rmdir', 'cyborg/gpu')], record[-4:])
        self.assertFalse(self.state.exists())
        self.assertFalse(self.conf.exists())
        self.assertNotIn('warning:', self.done.stderr)

    def test_keeps_the_records_of_real_gpus(self):
        self.stack('post-config', settings=case.REAL)
        (self.state / 'journal.json').write_text('{}', encoding='utf-8')
        # Even if the settings ask for simulated GPUs by now.
        self.unstack('unstack', 'clean', settings=case.SIMULATED)
        self.assertIn(f'warning: {self.state} is left', self.done.stderr)
        self.assertTrue((self.state / 'journal.json').exists())
        self.assertFalse(self.unit.exists())
