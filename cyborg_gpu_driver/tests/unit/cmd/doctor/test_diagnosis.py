# SPDX-License-Identifier: Apache-2.0

"""What the doctor concludes from the findings and failures of its parts."""

import threading

import testtools

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.doctor import command as doctor
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.host.snapshot import model

_GPU = model.PciAddress.parse('0000:07:00.0')
_ERROR = finding.error(None, 'it is', 'do')


class AttemptTest(testtools.TestCase):

    def test_one_that_hangs(self):
        ended = threading.Event()
        self.addCleanup(ended.set)
        (found,) = doctor.findings_of('the GPUs', 0.01, ended.wait)
        self.assertEqual(
            (finding.NOT_EXAMINED, finding.Severity.UNKNOWN,
             'the GPUs: it took longer than 0.01 seconds'),
            (found.code, found.severity, found.message))

    def test_one_that_fails(self):
        for error, text in (
                (exception.HostUnusable(reason='no'), 'no'),
                (OSError(5, 'Input/output error'),
                 'OSError: [Errno 5] Input/output error'),
                (KeyError('x'), "KeyError: 'x'")):
            def look(error=error):
                yield _ERROR
                raise error

            (found,) = doctor.findings_of('the GPUs', 60, look)
            self.assertEqual(finding.NOT_EXAMINED, found.code)
            self.assertIn(text, found.message)


class FindingTest(testtools.TestCase):

    def test_exit_codes(self):
        warning = finding.warning(None, 'm', 'a')
        unknown = finding.unknown(None, 'm', 'a')
        for findings, code in (
                ((), 0), ((_ERROR,), 1), ((warning,), 1), ((unknown,), 2),
                ((unknown, warning), 1)):
            self.assertEqual(code, finding.exit_code(findings))

    def test_equal_findings_are_grouped(self):
        gpus = [str(_GPU), '0000:0f:00.0', '0000:47:00.0']
        found = [_ERROR, *(
            finding.error(gpu, f'GPU {gpu} is off', f'turn {gpu} on')
            for gpu in gpus[:2]), finding.error(gpus[2], 'it is lost', 'do')]
        self.assertEqual(
            [('it is', 'do', []),
             ('GPU GPU is off', 'turn GPU on', gpus[:2]),
             ('it is lost', 'do', gpus[2:])],
            [(item.message, item.action, names)
             for item, names in doctor.grouped(found)])
        # A single finding names its GPU.
        ((item, _),) = doctor.grouped(found[1:2])
        self.assertEqual(f'turn {_GPU} on', item.action)
