# SPDX-License-Identifier: Apache-2.0

"""The tests that are known to skip themselves."""

from __future__ import annotations

import unittest
from collections.abc import Set

POLICIES = {'legacy': False, 'new': True}
"""Whether Cyborg enforces scopes and the new defaults, by policy name."""
GUEST_REBOOT = 'test_guest_reboot_with_pci_driver_device'
_TESTS = 'cyborg_tempest_plugin.tests'
_SCENARIO = frozenset(
    f'{_TESTS}.scenario.test_pci_driver_lifecycle.TestPCIDriverLifecycle.'
    f'{name}' for name in (
        # No guest, whose user could reboot it.
        GUEST_REBOOT,
        # Nova's fake virt driver uploads no image: a snapshot's would stay
        # queued.
        'test_snapshot_server_with_pci_driver_device',
        'test_backup_server_with_pci_driver_device'))
# Their subject is the new policy defaults. This is how unittest names a class
# that is skipped as a whole.
_LEGACY_API = frozenset(
    f'setUpClass ({_TESTS}.api.test_srbac.{name})' for name in (
        'TestSRBACServiceRole', 'TestSRBACAdminImpliedRoles',
        'TestSRBACScopeEnforcement'))


def skipped(policy: str, folder: str) -> Set[str]:
    """The tests and classes that skip themselves in such a run."""
    if folder == 'scenario':
        return _SCENARIO
    return frozenset() if POLICIES[policy] else _LEGACY_API


def problems(result: unittest.TestResult, expected: Set[str]) -> list[str]:
    """What is wrong with a run.

    :param expected: the tests and classes that skip themselves.
    """
    # testtools appends attributes to the name of a test.
    found = {test.id().partition('[')[0] for test, _ in result.skipped}
    # An expected failure does not show that anything works.
    return [*(() if result.wasSuccessful() and not result.expectedFailures
              else ('tests failed',)),
            *(f'{name} skips itself' for name in sorted(found - expected)),
            *(f'{name} does not skip itself, or does not exist any more'
              for name in sorted(expected - found))]
