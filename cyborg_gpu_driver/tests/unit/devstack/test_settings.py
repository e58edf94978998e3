# SPDX-License-Identifier: Apache-2.0

"""Settings of the DevStack plugin, and its messages for wrong ones."""

import pathlib
import re

from cyborg_gpu_driver.conf import gpu
from cyborg_gpu_driver.tests.unit.devstack import case

README = case.PLUGIN / 'README.rst'


def has_nvidia_gpu():
    """Whether this machine has an NVIDIA GPU."""
    return any(
        (device / 'vendor').read_text(encoding='ascii').strip() == '0x10de'
        and (device / 'class').read_text(encoding='ascii').startswith('0x03')
        for device in pathlib.Path('/sys/bus/pci/devices').glob('*'))


class RefusedTest(case.PluginTest):

    def refused(self, expected, **settings):
        record = self.devstack('stack', *case.PHASES,
                               settings={**case.SIMULATED, **settings})
        self.assertEqual([('phase', 'stack', 'pre-install')], record)
        self.assertEqual(1, self.done.returncode)
        died = [line for line in self.done.stderr.splitlines()
                if line.startswith('die: ')]
        self.assertEqual(1, len(died), self.done.stderr)
        self.assertIn(expected, died[0])

    def test_what_cannot_be(self):
        for expected, settings in (
                ('CYBORG_GPU_SIMULATED is not a setting of',
                 {'CYBORG_GPU_SIMULATED': 'True'}),
                ('CYBORG_GPU_POLICIES does not name big',
                 {'CYBORG_GPU_POLICY_big': 'mode=mig'}),
                ('CYBORG_GPU_SIMULATE=maybe: expected auto',
                 {'CYBORG_GPU_SIMULATE': 'maybe'}),
                ('CYBORG_GPU_HOST_FILE=mixd: expected the absolute path',
                 {'CYBORG_GPU_HOST_FILE': 'mixd'}),
                ('CYBORG_GPU_HOST_FILE=/no/host.yaml: expected the absolute',
                 {'CYBORG_GPU_HOST_FILE': '/no/host.yaml'}),
                ('CYBORG_GPU_STATE_PATH=state: expected an absolute path',
                 {'CYBORG_GPU_STATE_PATH': 'state'}),
                ('CYBORG_GPU_STATE_PATH=/: expected an absolute path',
                 {'CYBORG_GPU_STATE_PATH': '/'}),
                ('CYBORG_GPU_STRATEGY=tight: expected pack, spread, '
                 'standalone or quiet', {'CYBORG_GPU_STRATEGY': 'tight'}),
                ('CYBORG_GPU_FLAVOR_RAM=8G: expected a whole number',
                 {'CYBORG_GPU_FLAVOR_RAM': '8G'}),
                ('CYBORG_GPU_FLAVOR=m1.gpu needs CYBORG_GPU_PROFILE',
                 {'CYBORG_GPU_PROFILE': ''}),
                ('CYBORG_GPU_TRAITS: HW_GPU: Cyborg accepts only traits',
                 {'CYBORG_GPU_TRAITS': 'CUSTOM_A,HW_GPU'}),
                ('CYBORG_GPU_POLICIES: a-b: expected letters',
                 {'CYBORG_GPU_POLICIES': 'a-b'}),
                *((expected, {'CYBORG_GPU_POLICIES': 'a',
                              'CYBORG_GPU_POLICY_a': options})
                  for expected, options in (
                      ('CYBORG_GPU_POLICY_a=: expected options', ''),
                      ('CYBORG_GPU_POLICY_a=profiles=1g.5gb: expected',
                       'profiles=1g.5gb'),
                      ('CYBORG_GPU_POLICY_a: model=x: expected <option>',
                       'mode=mig;model=x'),
                      ('CYBORG_GPU_POLICY_a: profiles: expected <option>',
                       'mode=mig;profiles'))),
                ("needs Cyborg's plugin before it", {'WITHOUT_CYBORG': '1'}),
                ('NOVA_USE_SERVICE_TOKEN=False: Cyborg refuses every bind',
                 {'NOVA_USE_SERVICE_TOKEN': 'False'}),
                ('VIRT_DRIVER=ironic does not support accelerators',
                 {'VIRT_DRIVER': 'ironic'})):
            self.refused(expected, **settings)

    def test_a_simulated_gpu_for_a_guest(self):
        settings = {'VIRT_DRIVER': 'libvirt', 'CYBORG_GPU_SIMULATE': 'auto'}
        if has_nvidia_gpu():
            self.stack('pre-install', settings=settings)
        else:
            self.refused('This machine has no NVIDIA GPU, and a libvirt '
                         'guest cannot use a simulated GPU', **settings)


class AcceptedTest(case.PluginTest):

    def test_service_tokens_are_asked_for(self):
        self.assertEqual(
            [('phase', 'stack', 'pre-install')],
            self.stack('pre-install', settings=case.SIMULATED))
        self.assertIn('NOVA_USE_SERVICE_TOKEN=True', self.done.stdout)

    def test_the_sample(self):
        text = (case.PLUGIN / 'local.conf.sample').read_text(encoding='utf-8')
        sample = text.partition('[[local|localrc]]\n')[2]
        # The settings in its comments must be right as well.
        sample = re.sub(r'^#(CYBORG_)', r'\1', sample, flags=re.MULTILINE)
        sample = re.sub(r'^(enable|disable)_.*', '', sample,
                        flags=re.MULTILINE)
        self.assertIn('\nCYBORG_GPU_POLICY_slices=', sample)
        self.stack('pre-install', settings={'DEST': str(self.work)},
                   localrc=sample.partition('[[')[0])


class GpuTest(case.PluginTest):
    """``auto`` looks for a display controller of NVIDIA."""

    def found(self, vendor, device_class):
        device = self.work / 'sys' / 'bus' / 'pci' / 'devices' / '0000:41:00.0'
        device.mkdir(parents=True, exist_ok=True)
        (device / 'vendor').write_text(f'{vendor}\n', encoding='ascii')
        (device / 'class').write_text(f'{device_class}\n', encoding='ascii')
        return self.call('has_nvidia_gpu', str(self.work / 'sys'))

    def test_is_there(self):
        self.assertTrue(self.found('0x10de', '0x030200'))
        self.assertTrue(self.found('0x10de', '0x030000'))

    def test_is_not_there(self):
        self.assertFalse(self.found('0x10de', '0x068000'))
        self.assertFalse(self.found('0x1002', '0x030000'))
        self.assertFalse(self.call('has_nvidia_gpu', str(self.work / 'no')))


class NamesTest(case.PluginTest):

    def names(self, constant):
        text = (case.PLUGIN / 'lib' / 'cyborg-gpu-settings').read_text(
            encoding='utf-8')
        return set(' '.join(re.findall(
            rf'^_CYBORG_GPU_{constant}\+?="(.*)"$', text,
            re.MULTILINE)).split())

    def test_policies_have_the_options_of_the_library(self):
        self.assertEqual({option.name for option in gpu.POLICY_OPTS},
                         self.names('POLICY_OPTIONS'))

    def test_every_setting_has_a_default_and_is_described(self):
        text = (case.PLUGIN / 'settings').read_text(encoding='utf-8')
        found = set(re.findall(r'^ *CYBORG_GPU_(\w+)=', text, re.MULTILINE))
        found -= {'DIR', 'BIN_DIR'}
        self.assertEqual(found, self.names('SETTINGS'))
        described = set(re.findall(r'^``CYBORG_GPU_(\w+)',
                                   README.read_text(encoding='utf-8'),
                                   re.MULTILINE))
        self.assertEqual(found | {'POLICY_'}, described)
