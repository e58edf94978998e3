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
"""What the doctor concludes from the findings and failures of its sections.
"""

import threading

import testtools

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.check.rules import result
from cyborg_gpu_driver.cmd.diagnose import doctor
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile

_HOST = doctor.Section.HOST
_GPU = model.PciAddress.parse('0000:07:00.0')


def _finding(severity):
    return doctor.Finding(_HOST, 'x', severity, 'it is', 'do')


class AttemptTest(testtools.TestCase):

    def test_an_answer(self):
        found = [_finding(doctor.Severity.ERROR)]
        self.assertEqual(found, doctor.section_of(
            _HOST, 60, lambda: iter(found)))
        self.assertIsNone(doctor.attempt(_HOST, 60, lambda: None))

    def test_one_that_hangs(self):
        ended = threading.Event()
        self.addCleanup(ended.set)
        (found,) = doctor.section_of(_HOST, 0.01, ended.wait)
        self.assertEqual(
            (doctor.NOT_LOOKED_AT, doctor.Severity.UNKNOWN,
             'it took longer than 0.01 seconds'),
            (found.code, found.severity, found.message))
        self.assertIn('doctor --only host', found.action)

    def test_one_that_fails(self):
        for error, text in (
                (exception.HostUnusable(reason='no'), 'no'),
                (OSError(5, 'Input/output error'),
                 'OSError: [Errno 5] Input/output error'),
                (KeyError('x'), "KeyError: 'x'")):
            def look(error=error):
                yield _finding(doctor.Severity.ERROR)
                raise error

            (found,) = doctor.section_of(_HOST, 60, look)
            self.assertEqual(doctor.NOT_LOOKED_AT, found.code)
            self.assertIn(text, found.message)


class FindingTest(testtools.TestCase):

    def test_exit_codes(self):
        error, warning, unknown = map(_finding, (
            doctor.Severity.ERROR, doctor.Severity.WARNING,
            doctor.Severity.UNKNOWN))
        for findings, code in (
                ((), 0), ((error,), 1), ((warning,), 1), ((unknown,), 2),
                ((unknown, warning), 1)):
            self.assertEqual(code, doctor.exit_code(findings))

    def test_checks(self):
        found = list(doctor.of_check((
            ('MIG mode and SR-IOV', result.failure(_GPU, 'off', 'do')),
            ('kernel', result.warning(result.HOST, 'old', 'do')),
            ('kernel', result.success(result.HOST, 'good')),
            ('NVML', result.skipped(result.HOST, 'simulated')),
            ('NVML', result.skipped(result.HOST, 'no file', 'name it')),
            ('IOMMU', result.skipped(result.HOST, 'no file', 'name it')))))
        self.assertEqual(
            [('mig-mode-and-sr-iov', 'error', str(_GPU)),
             ('kernel', 'warning', None),
             ('not-looked-at', 'unknown', None)],
            [(item.code, item.severity.value, item.gpu) for item in found])

    def test_every_difference_has_a_section(self):
        found = list(doctor.of_differences(
            reconcile.Difference(kind, _GPU, 'subject', 'text', 'remedy')
            for kind in reconcile.Kind))
        self.assertEqual([kind.value for kind in reconcile.Kind],
                         [item.code for item in found])
        self.assertEqual(
            {'gpus', 'records', 'cloud'},
            {item.section.value for item in found})
