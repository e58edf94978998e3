# SPDX-License-Identifier: Apache-2.0


"""Whether this library can extend a Nova, and needs to."""

from __future__ import annotations

import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.nova import capability


class Nova34:
    """The methods of Nova 34 that this library extends."""

    def _allocate_cyborg_mdevs(self, accel_info):
        """A method of Nova."""

    def _get_guest_config(
            self, instance, network_info, image_meta, disk_info,
            rescue=None, block_device_info=None, context=None, mdevs=None,
            accel_info=None, share_info=None, old_guest=None):
        """A method of Nova."""

    def _guest_add_accel_pci_devices(self, guest, accel_info):
        """Attach every accelerator as managed."""

    def _hard_reboot(
            self, context, instance, network_info, share_info,
            block_device_info=None, accel_info=None):
        """A method of Nova."""


class CapabilityTest(base.BaseTestCase):

    def test_another_nova(self):
        for version in ('33.1.0', '35.0.0', '3', '', '340.0.0'):
            self.assertIn('34', capability.mismatch(Nova34, version))

    def test_parameters_that_changed(self):
        class Changed(Nova34):
            def _allocate_cyborg_mdevs(self, arqs):
                """A method whose parameter has another name."""
        self.assertIn('takes self, arqs where self, accel_info',
                      capability.mismatch(Changed, '34.0.0'))

    def test_method_that_is_gone(self):
        class Gone:
            pass
        self.assertIn('_allocate_cyborg_mdevs does not exist',
                      capability.mismatch(Gone, '34.0.0'))


class MdevProblemTest(base.BaseTestCase):
    """A Nova that is installed in the driver's environment or elsewhere."""

    def problem(self, *versions):
        """The problem with Novas of several versions, one per directory.

        The first directory takes precedence, as in every ``sys.path``.
        """
        directories = []
        for version in versions:
            directory = self.useFixture(fixtures.TempDir()).path
            metadata = os.path.join(
                directory, 'nova-0.dist-info', 'METADATA')
            os.mkdir(os.path.dirname(metadata))
            with open(metadata, 'w', encoding='utf-8') as stream:
                stream.write(f'Name: nova\nVersion: {version}\n')
            directories.append(directory)
        self.useFixture(fixtures.MonkeyPatch('sys.path', directories))
        return capability.mdev_problem()

    def test_quotas_count_gpus(self):
        self.assertEqual('', self.problem('34.0.0'))
        self.assertEqual('', capability.quota_problem())
        self.problem('33.0.2')
        self.assertIn('Nova 33.0.2 does not count',
                      capability.quota_problem())

    def test_nova_that_leaves_them_out(self):
        for version in ('31.0.0', '33.0.0', '33.1.0.dev212', '9.0.0'):
            self.assertIn(f'Nova {version} ignores accelerators',
                          self.problem(version))

    def test_nova_that_attaches_them(self):
        for version in ('34.0.0', '34.0.1.dev3', '35.0.0', '100.0.0'):
            self.assertEqual('', self.problem(version))

    def test_nova_of_no_known_version_is_not_trusted(self):
        for version in ('unknown', 'v34', '\u0663\u0664.0.0', '0.0.0'):
            self.assertIn('ignores accelerators', self.problem(version))

    def test_nova_that_is_not_installed_here(self):
        self.assertEqual('', self.problem())

    def test_the_nova_that_python_would_import(self):
        self.assertIn('Nova 33.0.0', self.problem('33.0.0', '34.0.0'))
