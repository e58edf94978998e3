# SPDX-License-Identifier: Apache-2.0


"""This library and Nova read ``[pci] device_spec`` alike."""

from __future__ import annotations

import json

import fixtures
import hypothesis
import testtools
from hypothesis import strategies
from nova import exception as nova_exception
from nova import test
from nova.pci import devspec

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import pci_config
from cyborg_gpu_driver.tests import scope

GPU = model.PciAddress.parse('0000:3b:00.0')


def _function(vendor, product, bus, function):
    address = model.PciAddress(0, bus, 0, function)
    return pci_config.Function(
        address, vendor, product, parent=GPU if function else None)


FUNCTIONS = strategies.builds(
    _function, strategies.sampled_from(['10de', '8086']),
    strategies.sampled_from(['26b9', '1515']),
    strategies.sampled_from([0x3b, 0x3c]), strategies.integers(0, 7))
PARTS = strategies.sampled_from(
    ['*', '', '0000', '0', '3b', '3B', '3c', '00', '4', '7', '8', 'xyz'])
ADDRESSES = strategies.one_of(
    strategies.builds('{}:{}:{}.{}'.format, PARTS, PARTS, PARTS, PARTS),
    strategies.builds('{}:{}.{}'.format, PARTS, PARTS, PARTS),
    strategies.builds('{}.{}'.format, PARTS, PARTS),
    strategies.just('0000:3b:00.0'),
    strategies.dictionaries(
        strategies.sampled_from(['domain', 'bus', 'slot', 'function']),
        strategies.sampled_from(
            ['.*', '0000', '3[bc]', '00', '[0-4]', '0', '['])))
SPECS = strategies.fixed_dictionaries({}, optional={
    'address': ADDRESSES,
    'vendor_id': strategies.sampled_from(['10de', '10DE', '*', '8086']),
    'product_id': strategies.sampled_from(['26b9', '1515', '*', '123456'])})


class DeviceSpecTest(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        # Nova reads sysfs to see whether an address is that of a GPU.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.pci.utils.is_physical_function',
            lambda domain, bus, slot, function:
            f'{domain}:{bus}:{slot}.{function}' == str(GPU)))

    @hypothesis.settings(max_examples=scope.examples(400))
    @hypothesis.given(SPECS, FUNCTIONS)
    # An entry for a GPU matches its virtual functions, too.
    @hypothesis.example({'address': str(GPU)},
                        _function('10de', '26b9', GPU.bus, 4))
    def test_both_match_alike(self, spec, function):
        self.assertEqual(self.nova(spec, function),
                         self.ours(spec, function))

    def nova(self, spec, function):
        """Whether the entry matches in Nova; None if Nova refuses it."""
        try:
            return devspec.PciDeviceSpec(dict(spec)).match({
                'vendor_id': function.vendor_id,
                'product_id': function.product_id,
                'address': str(function.address),
                'parent_addr': function.parent and str(function.parent)})
        except (nova_exception.PciConfigInvalidSpec,
                nova_exception.PciDeviceWrongAddressFormat):
            return None

    def ours(self, spec, function):
        try:
            (found,) = pci_config.parse_device_spec([json.dumps(spec)])
        except exception.InvalidValue:
            return None
        return found.matches(function)


class ManagedTest(testtools.TestCase):

    def test_managed_as_nova_reads_it(self):
        for value in ('no', 'yes', 'false', '0', 'True'):
            (ours,) = pci_config.parse_device_spec(
                [json.dumps({'managed': value})])
            nova = devspec.PciDeviceSpec({'managed': value}).get_tags()
            self.assertEqual(nova['managed'] == 'true', ours.managed)
