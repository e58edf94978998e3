# SPDX-License-Identifier: Apache-2.0

"""Orphans, told apart from servers' vGPUs by the released Cyborg's answers."""

import json
import os

from cyborg.api import app as cyborg_app

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.unit.cloud import keystone

_UUID = 'c5b0a1d2-34f6-4c7e-9b8a-001122334455'


class OrphanCase(gpu_cloud.GpuTestCase):
    """A cloud that openstacksdk logs in to, and an operator's commands."""

    starts_reported = True
    roles = ('admin',)

    def setUp(self):
        super().setUp()
        self.keystone = self.useFixture(keystone.KeystoneFixture(
            cyborg_app.load_app(), self.roles))

    def vgpu(self, *arguments, code=0):
        """Run a command; return its standard output and standard error."""
        result, output, errors = self.command('vgpu', *arguments)
        self.assertEqual(code, result, errors)
        return output, errors

    def listed(self, *arguments):
        """Return the listed rows by name of vGPU."""
        return {row['name']: row for row in json.loads(
            self.vgpu('list', '-f', 'json', *arguments)[0])}

    def refusal(self, *arguments):
        """Return the error of a command that cannot give an answer."""
        return self.vgpu(*arguments, code=1)[1]

    def sysfs(self):
        """Return the sysfs of the compute node's kernel."""
        return platform.open_platform(self.world).sysfs


class MdevTest(OrphanCase):

    machine = 't4x4'
    gpu = '0000:3b:00.0'
    overrides = {'gpu': {'policies': 't4'},
                 'gpu_policy:t4': {'mode': 'vgpu', 'vgpu_types': 'T4-4Q',
                                   'match_address': '0000:3b:00.0'}}

    def make(self):
        """Make an mdev by hand."""
        self.sysfs().write(_UUID, 'class', 'mdev_bus', self.gpu,
                           'mdev_supported_types', 'nvidia-232', 'create')
        self.addCleanup(self.world.uninstall)

    def forget(self):
        """Remove the GPU's record and end the agent."""
        os.unlink(os.path.join(self.state_path, f'gpus/{self.gpu}.json'))
        self.end_agent()

    def test_a_servers_is_none_and_one_made_by_hand_is(self):
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_T4_4Q'))
        (arq,) = server.arqs
        handle = arq['attach_handle_uuid']
        self.make()
        rows = self.listed()
        self.assertEqual(
            ('no', f'{handle} (bound)', server.uuid, arq['uuid']),
            tuple(rows[handle][key] for key in (
                'orphan', 'owner', 'server', 'arq')))
        self.assertEqual(
            ('yes', 'none', 'none', 'none'),
            tuple(rows[_UUID][key] for key in (
                'orphan', 'owner', 'server', 'arq')))
        self.assertEqual({_UUID}, set(self.listed('--orphans')))
        self.vgpu('clean', '--orphans', '--yes')
        self.assertEqual({handle}, set(self.mdevs()))
        self.cloud.unbind(server)
        self.report()
        self.assertEqual(self.untouched, self.everything())

    def test_without_the_journal_the_server_still_has_it(self):
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_T4_4Q'))
        (handle,) = self.mdevs()
        self.forget()
        row = self.listed()[handle]
        self.assertEqual(('no', 'none', server.uuid),
                         (row['orphan'], row['owner'], row['server']))
        self.assertIn('an accelerator request has it',
                      self.refusal('clean', handle, '--yes'))
        self.vgpu('clean', '--orphans', '--yes')
        self.assertEqual({handle}, set(self.mdevs()))
        self.cloud.unbind(server)

    def test_a_released_one_that_stuck_is_the_agents(self):
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_T4_4Q'))
        (handle,) = self.mdevs()
        self.world.start_guest(handle)
        self.forget()
        self.cloud.unbind(server)
        row = self.listed()[handle]
        self.assertEqual(('no', f'{handle} (unbinding)'),
                         (row['orphan'], row['owner']))
        self.assertIn('its owner is', self.refusal('clean', handle, '--yes'))
        self.world.stop_guest(handle)
        self.report()
        self.assertEqual(self.untouched, self.everything())


class OtherProjectTest(OrphanCase):
    """A user to whom Cyborg shows only requests of the user's project."""

    machine = 't4x4'
    gpu = MdevTest.gpu
    overrides = MdevTest.overrides
    roles = ('manager', 'member')

    def test_who_sees_a_part_is_not_answered(self):
        self.cloud.bind(self.profile('CUSTOM_NVIDIA_T4_4Q'))
        names = set(self.mdevs())
        for arguments in (('list',), ('clean', '--orphans', '--yes'),
                          ('clean', *names, '--yes')):
            self.assertIn('role admin', self.refusal(*arguments))
        self.assertEqual(names, set(self.mdevs()))


class VendorVfioTest(OrphanCase):

    machine = 'hgx-h100-vfio'
    gpu = '0000:18:00.0'
    overrides = {
        'gpu': {'policies': 'one'},
        'gpu_policy:one': {'mode': 'vgpu', 'vgpu_types': 'H100XM-40C',
                           'match_address': '0000:18:00.0'}}

    def test_a_function_of_a_server_and_one_written_by_hand(self):
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_H100XM_40C'))
        (arq,) = server.arqs
        taken = str(model.PciAddress.parse(
            '{domain}:{bus}:{device}.{function}'.format(
                **arq['attach_handle_info'])))
        with self.world.operation():
            free = next(function for function in self.world.gpu(
                self.gpu).vf_addresses if function != taken)
        self.sysfs().write('1143', 'bus', 'pci', 'devices', free, 'nvidia',
                           'current_vgpu_type')
        self.addCleanup(self.world.uninstall)
        rows = self.listed()
        self.assertEqual(
            {taken: ('no', server.uuid), free: ('yes', 'none')},
            {name: (row['orphan'], row['server'])
             for name, row in rows.items()})
        self.vgpu('clean', '--orphans', '--yes')
        self.assertEqual({taken}, set(self.listed()))
        self.cloud.unbind(server)
        self.report()
        self.assertEqual(self.untouched, self.everything())
