# SPDX-License-Identifier: Apache-2.0

"""Virtual machines of a simulated host, and failures of libvirt."""

import errno
import threading

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import domains
from cyborg_gpu_driver.simulator import tools
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base
from cyborg_gpu_driver.tests.unit.host.snapshot import test_domain

_OTHER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a12'


class DomainReaderTest(base.SimulatedTestCase):

    MACHINE = 't4x4'

    def setUp(self):
        super().setUp()
        self.domains = domains.DomainReader(self.platform.libvirt)
        self.machine.define_domain(test_domain.SERVER, test_domain.xml())

    def test_what_is_there(self):
        self.machine.define_domain(_OTHER, 'no XML')
        self.assertEqual([test_domain.SERVER],
                         [item.uuid for item in self.domains.read()])
        self.machine.undefine_domain(test_domain.SERVER)
        self.assertEqual((), self.domains.read())

    def test_a_domain_that_goes_away_meanwhile(self):
        class Connection(tools.Connection):
            """A connection that loses a domain after it is listed."""

            def listAllDomains(self, flags):
                found = super().listAllDomains(flags)
                self._machine.undefine_domain(_OTHER)
                return found

        self.machine.define_domain(_OTHER, test_domain.xml(_OTHER))
        reader = domains.DomainReader(lambda: Connection(self.machine))
        self.assertEqual([test_domain.SERVER],
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
