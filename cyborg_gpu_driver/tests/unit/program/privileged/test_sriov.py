# SPDX-License-Identifier: Apache-2.0

"""Runs of sriov-manage, with a script that answers as it does."""

import os
import stat

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.program.privileged import vgpu

_GPU = '0000:07:00.0'
_BUSY = 'Cannot obtain unbindLock for 0000:07:00.0'


class SriovTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.slept = []

    def manage(self, body, enable=True):
        """Use a script as sriov-manage. Keep the arguments of its runs."""
        script = os.path.join(self.directory, 'sriov-manage')
        told = os.path.join(self.directory, 'told')
        with open(script, 'w', encoding='utf-8') as stream:
            stream.write(f'#!/bin/sh\necho "$@" >> {told}\n'
                         f'runs=$(wc -l < {told})\n{body}\n')
        os.chmod(script, os.stat(script).st_mode | stat.S_IXUSR)
        try:
            vgpu.manage_functions(_GPU, enable, script, self.slept.append)
        finally:
            with open(told, encoding='utf-8') as stream:
                self.runs = stream.read().splitlines()

    def test_functions_of_one_gpu(self):
        self.manage('exit 0')
        self.assertEqual([f'-e {_GPU}'], self.runs)

    def test_functions_removed(self):
        self.manage('exit 0', enable=False)
        self.assertEqual([f'-d {_GPU}'], self.runs)

    def test_lock_that_passes(self):
        self.manage(f'[ $runs -ge 3 ] || {{ echo "{_BUSY}"; exit 1; }}')
        self.assertEqual(3, len(self.runs))
        self.assertEqual(2, len(self.slept))

    def test_lock_that_stays(self):
        error = self.assertRaises(exception.StepFailed, self.manage,
                                  f'echo "{_BUSY}"; exit 1')
        self.assertIn('unbindLock', str(error))
        self.assertEqual(5, len(self.runs))

    def test_other_failures_are_not_tried_again(self):
        error = self.assertRaises(exception.StepFailed, self.manage,
                                  'echo "no such GPU" >&2; exit 2')
        self.assertIn('no such GPU', str(error))
        self.assertEqual(1, len(self.runs))

    def test_no_script(self):
        error = self.assertRaises(
            exception.StepFailed, vgpu.manage_functions, _GPU, True,
            '/nonexistent/sriov-manage')
        self.assertIn('vGPU software', str(error))
