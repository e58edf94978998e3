# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.host.health import reader
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci

_GPU = model.PciAddress.parse('0000:07:00.0')
_CONFIG = bytes.fromhex('de10b220') + bytes(60)
# As in Documentation/ABI/testing/sysfs-bus-pci-devices-aer.
_AER = ('Undefined 0\nDLP 0\nSDES 0\nTLP 1\nFCP 0\nCmpltTO 2\n'
        'TOTAL_ERR_FATAL {}\n')


class ReadTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        root = self.useFixture(fixtures.TempDir()).path
        self.place = os.path.join(root, 'bus', 'pci', 'devices', str(_GPU))
        os.makedirs(self.place)
        self.sysfs = pci.Sysfs(root)

    def write(self, name, content):
        if isinstance(content, str):
            content = content.encode()
        with open(os.path.join(self.place, name), 'wb') as stream:
            stream.write(content)

    def read(self):
        return reader.read_pci(self.sysfs, _GPU)

    def test_a_gpu_that_is_well(self):
        self.write('config', _CONFIG)
        self.write('aer_dev_fatal', _AER.format(3))
        self.write('current_link_width', '16\n')
        self.assertEqual(reader.Seen(True, 3, 16), self.read())

    def test_a_gpu_that_is_off_the_bus(self):
        self.write('config', b'\xff' * 64)
        # drivers/pci/pci-sysfs.c prints 63, all bits set, without a link.
        self.write('current_link_width', '63\n')
        self.assertEqual(reader.Seen(False, None, 63), self.read())

    def test_a_kernel_that_does_not_tell(self):
        self.assertEqual(reader.Seen(), self.read())
        for name, text in (('config', ''), ('aer_dev_fatal', 'DLP 0\n'),
                           ('current_link_width', 'Unknown\n')):
            self.write(name, text)
        self.assertEqual(reader.Seen(), self.read())

    def test_no_such_function(self):
        self.assertEqual(reader.Seen(), reader.read_pci(
            self.sysfs, model.PciAddress.parse('0000:08:00.0')))


class WrongTest(base.BaseTestCase):

    def test_each(self):
        seen = reader.Seen
        before = seen(True, 1, 16)
        for now, expected in (
                (before, ()), (seen(), ()),
                (seen(False, None, None), (condition.UNREACHABLE,)),
                (seen(True, 2, 16), (condition.FATAL,)),
                (seen(True, 0, 16), ()),
                (seen(True, 1, 8), (condition.LANES,))):
            self.assertEqual(expected, reader.wrong_pci(before, now), now)

    def test_without_a_record_only_what_is_now_counts(self):
        seen = reader.Seen
        self.assertEqual((), reader.wrong_pci(seen(), seen(True, 9, 1)))
        self.assertEqual((condition.UNREACHABLE,),
                         reader.wrong_pci(seen(), seen(False, 9, 1)))
