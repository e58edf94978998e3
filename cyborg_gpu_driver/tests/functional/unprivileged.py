# SPDX-License-Identifier: Apache-2.0

"""Runs functional tests as a user without privileges.

usage: python -m cyborg_gpu_driver.tests.functional.unprivileged
           DIRECTORY MACHINE TEST...

Root starts this process. It forks oslo.privsep's daemon, which keeps root's
privileges, then drops its own privileges permanently and runs the tests.
DIRECTORY has the simulated machine's state file, which only root may write,
and a directory ``user``, which this process gives to the user and which must
be TMPDIR. CYBORG_GPU_TEMPLATES may name a directory in it with databases to
copy.
"""

import errno
import os
import shutil
import subprocess
import sys
import unittest

from oslo_config import cfg
from oslo_privsep import priv_context
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import nobody
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import base as functional
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import root_beside

_GPU = model.PciAddress.parse('0000:07:00.0')


class ClosedTest(base.BaseTestCase):
    """Changes of the machine that this process cannot make by itself."""

    def setUp(self):
        super().setUp()
        self.machine = platform.simulated(
            gpu_cloud.TWO_GPUS, os.path.join(
                gpu_cloud.GpuTestCase.hardware_directory, 'hardware.json'))

    def test_it_is_not_root(self):
        self.assertFalse(self.machine.is_root())

    def test_instances_are_read_and_not_made(self):
        nvml = self.machine.nvml
        device = nvml.device(_GPU)
        self.assertEqual((), nvml.gpu_instances(device, 9))
        for change in (lambda: nvml.create_gpu_instance(device, 9),
                       lambda: nvml.set_mig_mode(device, False)):
            error = self.assertRaises(exception.NvmlError, change)
            self.assertEqual('NO_PERMISSION', error.symbol)

    def test_control_files_do_not_open(self):
        error = self.assertRaises(
            exception.SysfsError, self.machine.sysfs.write, '1', 'bus',
            'pci', 'devices', str(_GPU), 'reset')
        self.assertEqual(errno.EACCES, error.errno)


def begin(directory: str) -> None:
    """Prepare a directory for :func:`run`."""
    os.chmod(directory, 0o755)
    os.mkdir(os.path.join(directory, 'user'))


def run(directory: str, machine: str, *names: str
        ) -> subprocess.CompletedProcess:
    """Run tests as ``nobody.USER`` in a process of their own.

    :param machine: the simulated machine, which the tests run on one after
        the other. They change it only through the driver.
    :param names: names of tests, relative to this package.
    """
    # Root creates the state file.
    simulator.Machine.load(machine, os.path.join(directory, 'hardware.json'))
    own = os.path.join(directory, 'user')
    templates = os.path.join(own, 'templates')
    if not os.path.exists(templates):
        shutil.copytree(
            os.path.dirname(functional.make_templates().cyborg), templates)
    return subprocess.run(
        [sys.executable, '-m', 'cyborg_gpu_driver.tests.functional.'
         'unprivileged', directory, machine,
         *(f'cyborg_gpu_driver.tests.functional.{name}' for name in names)],
        env={**os.environ, 'TMPDIR': own, 'OS_LOG_CAPTURE': '1',
             functional.TEMPLATES: templates},
        capture_output=True, text=True, check=False, timeout=scope.HANG)


def main(directory: str, machine: str, *names: str) -> bool:
    """Run the tests of these names; return whether they passed."""
    own = os.path.join(directory, 'user')
    options = os.path.join(own, 'helper.conf')
    with open(options, 'w', encoding='utf-8') as stream:
        stream.write(f'[gpu]\nsimulate = {machine}\n'
                     f'simulate_state = {directory}/hardware.json\n'
                     'nvml_timeout = 5\n')
    cfg.CONF(['--config-file', options])
    # Fork before there are threads: a fork copies the locks that they hold.
    root = root_beside.Root(directory, machine)
    privsep.gpu_context.start(priv_context.Method.FORK)
    functional.make_templates()
    gpu_cloud.GpuTestCase.root = root
    nobody.give(own)
    nobody.become()
    gpu_cloud.GpuTestCase.hardware_directory = directory
    result = unittest.TextTestRunner().run(
        unittest.defaultTestLoader.loadTestsFromNames(names))
    return (result.wasSuccessful() and result.testsRun > 0
            and privsep.gpu_context.client_mode
            and privsep.gpu_context.channel.running)


if __name__ == '__main__':
    sys.exit(not main(*sys.argv[1:]))
