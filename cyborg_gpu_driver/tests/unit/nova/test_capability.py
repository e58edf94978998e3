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

    def test_what_cannot_be_extended(self):
        class Changed(Nova34):
            def _allocate_cyborg_mdevs(self, arqs):
                """A method whose parameter has another name."""

        for version in ('33.1.0', '35.0.0', '3', '', '340.0.0'):
            self.assertIn('34', capability.mismatch(Nova34, version))
        self.assertEqual('', capability.mismatch(Nova34, '34.0.0'))
        self.assertIn('takes self, arqs where self, accel_info',
                      capability.mismatch(Changed, '34.0.0'))
        self.assertIn('_allocate_cyborg_mdevs does not exist',
                      capability.mismatch(object, '34.0.0'))


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

    def test_problems(self):
        for versions, good in (
                (('34.0.0',), True), (('34.0.1.dev3',), True),
                (('100.0.0',), True), ((), True),
                # The one that Python would import.
                (('33.0.0', '34.0.0'), False), (('33.1.0.dev212',), False),
                (('9.0.0',), False), (('unknown',), False),
                (('\u0663\u0664.0.0',), False)):
            found = self.problem(*versions), capability.quota_problem()
            for text, words in zip(found, ('ignores accelerators',
                                           'does not count'), strict=True):
                if good:
                    self.assertEqual('', text, versions)
                else:
                    self.assertIn(f'Nova {versions[0]} {words}', text)
