# SPDX-License-Identifier: Apache-2.0

"""libvirt's XML, the domains of a simulated host, failures of libvirt."""

import errno
import threading
import uuid

from oslotest import base as oslotest

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import domains
from cyborg_gpu_driver.simulator import tools
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base

SERVER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a11'
PROJECT = 'b9a2c1f04d6e4f5f8a7c6b5d4e3f2a10'
MDEV = '4b20d080-1b54-4048-85b3-a6a62d165c01'
NAMESPACE = 'http://openstack.org/xmlns/libvirt/nova/1.1'
_OTHER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a12'


def xml(server=SERVER, project=PROJECT, flavor='gpu.small', devices=(),
        namespace=NAMESPACE):
    """Return the XML of a domain as Nova makes it.

    :param devices: UUIDs of mdevs and addresses of PCI functions.
    """
    return f"""<domain type='kvm' id='1'>
  <name>instance-00000001</name>
  <uuid>{server}</uuid>
  <metadata>
    <nova:instance xmlns:nova='{namespace}'>
      <nova:name>one</nova:name>
      <nova:flavor name='{flavor}' id='1'><nova:memory>64</nova:memory>
      </nova:flavor>
      <nova:owner>
        <nova:user uuid='3c1d'>user1</nova:user>
        <nova:project uuid='{project}'>project1</nova:project>
      </nova:owner>
    </nova:instance>
  </metadata>
  <devices>
    <disk type='file' device='disk'><source file='/x'/>
      <address type='pci' domain='0x0000' bus='0x04' slot='0x00'
        function='0x0'/></disk>
    {''.join(map(_hostdev, devices))}
  </devices>
</domain>
"""


def _hostdev(device):
    try:
        source = f"<address uuid='{uuid.UUID(device)}'/>"
    except ValueError:
        where, bus, rest = device.split(':')
        slot, _, function = rest.partition('.')
        source = (f"<address domain='0x{where}' bus='0x{bus}' slot='0x{slot}'"
                  f" function='0x{function}'/>")
    return (f"<hostdev mode='subsystem'><source>{source}</source>"
            "<address type='pci' domain='0x0000' bus='0x05' slot='0x00' "
            "function='0x0'/></hostdev>")


class DomainTest(oslotest.BaseTestCase):

    def test_a_server_with_devices_of_the_host(self):
        self.assertEqual(
            domains.Domain(SERVER, PROJECT, 'gpu.small',
                          frozenset({MDEV, '0000:41:00.4'})),
            domains.parse(xml(devices=(MDEV, '0000:41:00.4'))))

    def test_a_virtual_machine_that_nova_did_not_make(self):
        found = domains.parse(xml(namespace='http://example.org/1.1'))
        self.assertEqual((SERVER, '', ''),
                         (found.uuid, found.project, found.flavor))

    def test_what_is_no_id_of_a_project_is_none(self):
        self.assertEqual('', domains.parse(xml(project='../x')).project)
        self.assertEqual('', domains.parse(xml(project='x' * 65)).project)

    def test_a_device_without_an_address(self):
        text = xml(devices=('0000:41:00.4',)).replace("bus='0x41'", '')
        self.assertEqual(frozenset(), domains.parse(text).devices)

    def test_what_is_no_domain_is_refused(self):
        for text in ('', '<domain>', '<domain/>', xml(server='one'),
                     '<a>' + 'x' * (5 << 20) + '</a>'):
            self.assertRaises(ValueError, domains.parse, text)

    def test_entities_are_refused(self):
        bomb = ('<!DOCTYPE d [<!ENTITY a "x"><!ENTITY b "&a;&a;">]>'
                + xml(flavor='&b;'))
        error = self.assertRaises(ValueError, domains.parse, bomb)
        self.assertIn('document type', str(error))


class DomainReaderTest(base.SimulatedTestCase):

    MACHINE = 't4x4'

    def setUp(self):
        super().setUp()
        self.domains = domains.DomainReader(self.platform.libvirt)
        self.machine.define_domain(SERVER, xml())

    def test_what_is_there(self):
        self.machine.define_domain(_OTHER, 'no XML')
        self.assertEqual([SERVER],
                         [item.uuid for item in self.domains.read()])
        self.machine.undefine_domain(SERVER)
        self.assertEqual((), self.domains.read())

    def test_a_domain_that_goes_away_meanwhile(self):
        class Connection(tools.Connection):
            """A connection that loses a domain after it is listed."""

            def listAllDomains(self, flags):
                found = super().listAllDomains(flags)
                self._machine.undefine_domain(_OTHER)
                return found

        self.machine.define_domain(_OTHER, xml(_OTHER))
        reader = domains.DomainReader(lambda: Connection(self.machine))
        self.assertEqual([SERVER],
                         [item.uuid for item in reader.read()])

    def test_libvirt_refuses(self):
        self.machine.faults.fail('libvirt', errno.ECONNREFUSED)
        error = self.assertRaises(exception.UsageUnknown, self.domains.read)
        self.assertIn('Connection refused', str(error))
        self.assertEqual(1, len(self.domains.read()))

    def test_libvirt_hangs(self):
        answers = threading.Event()
        self.addCleanup(self._answered, answers)
        self.machine.faults.delay('libvirt', 30, answers.wait)
        reader = domains.DomainReader(self.platform.libvirt, 0.1)
        for _ in range(2):
            error = self.assertRaises(exception.UsageUnknown, reader.read)
            self.assertIn('listAllDomains did not return', str(error))

    def _answered(self, answers):
        """Let libvirt answer, and return when it has answered."""
        answers.set()
        deadline._workers['libvirt']._late[0].answer.exception(scope.HANG)
        deadline.run('libvirt', 30, 'nothing', int)

    def test_there_is_no_such_module(self):
        reader = domains.DomainReader(domains.connect)
        self.assertRaises(exception.UsageUnknown, reader.read)
