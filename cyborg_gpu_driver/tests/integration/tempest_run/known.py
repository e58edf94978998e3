# SPDX-License-Identifier: Apache-2.0

"""The tests that are known not to pass, each with the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from cyborg_gpu_driver.tests.integration.tempest_run import plan

_LIFECYCLE = ('cyborg_tempest_plugin.tests.scenario.'
              'test_pci_driver_lifecycle.TestPCIDriverLifecycle.')
_SRBAC = 'cyborg_tempest_plugin.tests.api.test_srbac.'
_NO_SNAPSHOT = ("Nova's fake virt driver uploads no image: a snapshot's "
                'would stay queued')
_LEGACY = 'its subject is the new policy defaults'


@dataclasses.dataclass(frozen=True)
class Named:
    """Why a test does not pass.

    :ivar reason: the reason, for the reader of a report.
    :ivar asked: whether the test is run, and skips itself; a test for which
        this is false is not run.
    :ivar policies: the policies under which the test does not pass.
    """

    reason: str
    asked: bool = True
    policies: Collection[str] = tuple(plan.POLICIES)


TESTS = {
    _LIFECYCLE + 'test_guest_reboot_with_pci_driver_device': Named(
        'no guest, whose user could reboot it', asked=False),
    _LIFECYCLE + 'test_snapshot_server_with_pci_driver_device': Named(
        _NO_SNAPSHOT),
    _LIFECYCLE + 'test_backup_server_with_pci_driver_device': Named(
        _NO_SNAPSHOT),
    **{_SRBAC + name: Named(_LEGACY, policies=('legacy',)) for name in (
        'TestSRBACServiceRole.test_service_create_and_delete_arq',
        'TestSRBACAdminImpliedRoles.test_admin_can_list_attributes',
        'TestSRBACAdminImpliedRoles.test_admin_can_read_arqs',
        'TestSRBACAdminImpliedRoles.test_admin_can_read_deployables',
        'TestSRBACAdminImpliedRoles.test_admin_can_read_devices',
        'TestSRBACAdminImpliedRoles.test_admin_can_write_arqs',
        'TestSRBACAdminImpliedRoles.test_reader_can_list_arqs',
        'TestSRBACAdminImpliedRoles.test_reader_can_list_device_profiles',
        'TestSRBACScopeEnforcement.test_system_admin_cannot_list_devices',
    )},
}
"""By their full names. A test that neither passes nor is listed here is a
failure. So is a listed test that passes or does not exist any more."""


def under(policy: str, folder: str) -> dict[str, Named]:
    """The tests that are known not to pass in such a run, by name."""
    prefix = f'cyborg_tempest_plugin.tests.{folder}.'
    return {test: named for test, named in TESTS.items()
            if policy in named.policies and test.startswith(prefix)}
