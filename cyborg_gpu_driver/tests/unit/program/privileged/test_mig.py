# SPDX-License-Identifier: Apache-2.0

"""Privileged operations in the oslo.privsep daemon, and its errors."""

import contextlib
import errno
import glob
import os
import signal

import fixtures
from oslo_config import cfg
from oslo_config import fixture as config_fixture
from oslo_privsep import daemon
from oslo_privsep import priv_context
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu

_UUID = '4b20d080-1b54-4048-85b3-a6a62d165c01'
_PARENT = '0000:3b:00.0'


def _failing(*_arguments, **_named):
    raise daemon.FailedToDropPrivileges('privsep helper command exited')


class DaemonTest(base.BaseTestCase):
    """Calls to a daemon that was really forked and dropped privileges."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest('only root can start a daemon that keeps '
                          'capabilities')
        self.root = self.useFixture(fixtures.TempDir()).path
        gpu_conf.register_opts(cfg.CONF)
        config = self.useFixture(config_fixture.Config(cfg.CONF))
        cfg.CONF([], project='test', default_config_files=[])
        self.mdevctl = os.path.join(self.root, 'mdevctl')
        self.useFixture(fixtures.EnvironmentVariable(
            'PATH', f'{self.root}:{os.environ["PATH"]}'))
        config.config(group='gpu', sysfs_root=self.root)
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.privileged.mig._platform', None))
        context = privsep.gpu_context
        context.set_client_mode(True)
        self.addCleanup(context.set_client_mode, False)
        context.start(method=priv_context.Method.FORK)
        self.addCleanup(context.stop)

        self.make_function(_PARENT, '0x10de')

    def make_function(self, address, vendor):
        with open(self.make('bus', 'pci', 'devices', address, 'vendor'),
                  'w') as stream:
            stream.write(f'{vendor}\n')

    def make_mdev(self, parent, *parts):
        """Create an mdev with a control file. Return the file's path."""
        path = self.make('devices', parent, _UUID, *parts)
        link = os.path.join(self.root, 'bus', 'mdev', 'devices', _UUID)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(f'../../../devices/{parent}/{_UUID}', link)
        return path

    def make(self, *parts):
        """Create an empty control file below the root. Return its path."""
        path = os.path.join(self.root, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w'):
            pass
        return path

    def test_the_kernels_error_arrives(self):
        error = self.assertRaises(exception.SysfsError,
                                  privileged_vgpu.remove_mdev, _UUID)
        self.assertEqual(errno.ENOENT, error.errno)
        self.assertIn(_UUID, str(error))

    def test_what_a_function_of_vendor_vfio_is_told(self):
        place = ('bus', 'pci', 'devices', _PARENT, 'nvidia')
        path = self.make(*place, 'current_vgpu_type')
        privileged_vgpu.set_vgpu_type(_PARENT, 1145)
        with open(path) as stream:
            self.assertEqual('1145', stream.read())
        for vgpu, path in (
                (_PARENT, self.make(*place, 'vgpu_params')),
                (_UUID, self.make_mdev(_PARENT, 'nvidia', 'vgpu_params'))):
            privileged_vgpu.set_vgpu_placement(vgpu, 12)
            with open(path) as stream:
                self.assertEqual('vgpu-placement-id=12', stream.read())

    def test_mdevctl_is_run(self):
        privileged_vgpu.undefine_mdev(_UUID)  # There is no mdevctl.
        for text, fails in (('exit 0', False),
                            ('echo Error: No devices match >&2; exit 1',
                             False),
                            ('echo "$@" >&2; exit 1', True)):
            with open(self.mdevctl, 'w') as stream:
                stream.write(f'#!/bin/sh\n{text}\n')
            os.chmod(self.mdevctl, 0o700)
            if not fails:
                privileged_vgpu.undefine_mdev(_UUID)
        error = self.assertRaises(exception.StepFailed,
                                  privileged_vgpu.undefine_mdev, _UUID)
        self.assertIn(f'undefine --uuid {_UUID}', str(error))
        os.chmod(self.mdevctl, 0o600)
        error = self.assertRaises(exception.StepFailed,
                                  privileged_vgpu.undefine_mdev, _UUID)
        self.assertIn('cannot be run', str(error))

    def test_only_what_is_nvidias_is_touched(self):
        other = '0000:00:1f.6'
        self.make_function(other, '0x8086')
        remove = self.make_mdev(other, 'remove')
        files = [remove, *(
            self.make('bus', 'pci', 'devices', other, *place) for place in (
                ('reset',), ('nvidia', 'current_vgpu_type'),
                ('nvidia', 'vgpu_params')))]
        with open(self.mdevctl, 'w') as stream:
            stream.write('#!/bin/sh\nexit 1\n')
        os.chmod(self.mdevctl, 0o700)
        for call, arguments in (
                (privileged_vgpu.create_mdev, (other, 'nvidia-231', _UUID)),
                (privileged_vgpu.remove_mdev, (_UUID,)),
                (privileged_vgpu.undefine_mdev, (_UUID,)),
                (privileged_vgpu.set_vgpu_type, (other, 0)),
                (privileged_vgpu.set_vgpu_placement, (other, 0)),
                (privileged_vgpu.set_vgpu_placement, (_UUID, 0)),
                (privileged_vgpu.vfio_holders, (other,)),
                (privileged_driver.reset, (other,)),
                (privileged_driver.bind, (other, 'vfio-pci'))):
            self.assertRaises(exception.UnknownGpu, call, *arguments)
        for path in files:
            self.assertEqual(0, os.path.getsize(path), path)

    def test_a_daemon_that_died_is_an_error_of_ours(self):
        self.make('class', 'mdev_bus', _PARENT, 'mdev_supported_types',
                  'nvidia-231', 'create')
        privsep.gpu_context.stop()
        self.useFixture(fixtures.MonkeyPatch(
            'oslo_privsep.daemon.RootwrapClientChannel.__init__', _failing))
        error = self.assertRaises(
            exception.HostUnusable, privileged_vgpu.create_mdev,
            _PARENT, 'nvidia-231', _UUID)
        self.assertIn('create_mdev', str(error))
        self.assertIn('privsep helper command exited', str(error))
        self.assertIn('helper_command', str(error))

    def test_a_daemon_that_is_stopped_is_not_waited_for(self):
        path = self.make('bus', 'pci', 'devices', _PARENT, 'nvidia',
                         'current_vgpu_type')
        stopped = self.daemon()
        os.kill(stopped, signal.SIGSTOP)
        self.addCleanup(os.kill, stopped, signal.SIGCONT)
        self.addCleanup(privsep.set_timeout, privsep.gpu_context.timeout)
        privsep.set_timeout(0.1)
        error = self.assertRaises(
            exception.HostUnusable, privileged_vgpu.set_vgpu_type,
            _PARENT, 7)
        self.assertIn('set_vgpu_type', str(error))
        privsep.set_timeout(60)
        os.kill(stopped, signal.SIGCONT)
        privileged_vgpu.set_vgpu_type(_PARENT, 7)
        with open(path) as stream:
            self.assertIn('7', stream.read())

    def test_a_call_that_was_given_up_is_known_until_it_ends(self):
        path = self.make('class', 'mdev_bus', _PARENT,
                         'mdev_supported_types', 'nvidia-231', 'create')
        os.unlink(path)
        # Its open() waits for a reader.
        os.mkfifo(path)
        self.addCleanup(privsep.set_timeout, privsep.gpu_context.timeout)
        privsep.set_timeout(0.1)
        self.assertRaises(
            exception.HostUnusable, privileged_vgpu.create_mdev,
            _PARENT, 'nvidia-231', _UUID)
        privsep.set_timeout(60)
        error = self.assertRaises(exception.StepFailed,
                                  privileged_gpu.check_ended, [_PARENT])
        self.assertIn('not ended yet: create_mdev', str(error))
        privileged_gpu.check_ended(['0000:ff:00.0'])
        with open(path) as stream:
            self.assertEqual(_UUID, stream.read())
        privileged_gpu.check_ended([_PARENT])

    def test_a_rollback_needs_no_daemon_that_never_started(self):
        context = privsep.gpu_context
        privileged_gpu.refuse_unfinished([_PARENT])
        context.stop()
        with fixtures.MonkeyPatch(
                'oslo_privsep.daemon.RootwrapClientChannel', _failing):
            # A call to the daemon that ended may still run.
            self.assertRaises(exception.HostUnusable,
                              privileged_gpu.check_ended, [_PARENT])
            with fixtures.MonkeyPatch(
                    'cyborg_gpu_driver.privsep._has_run', False):
                self.assertRaises(
                    exception.HostUnusable,
                    privileged_vgpu.set_vgpu_type, _PARENT, 7)
                privileged_gpu.check_ended([_PARENT])

    def daemon(self):
        """Return the id of the daemon's process, a child of this process."""
        children = []
        for path in glob.glob('/proc/[0-9]*/stat'):
            with contextlib.suppress(OSError), open(path) as stream:
                # The name of the command, in parentheses, may have spaces.
                before, _, after = stream.read().rpartition(')')
                state, parent, *_ = after.split()
                number = int(before.split()[0])
                if (int(parent) == os.getpid() and state != 'Z'
                        and not self.is_tracker(number)):
                    children.append(number)
        (found,) = children
        return found

    def is_tracker(self, number):
        """Whether a process is the one that Python's multiprocessing keeps."""
        with open(f'/proc/{number}/cmdline') as stream:
            return 'multiprocessing.resource_tracker' in stream.read()

    def test_the_daemon_checks_for_itself(self):
        for call, arguments in (
                (privileged_vgpu.create_mdev, ('../x', 'nvidia-231', _UUID)),
                (privileged_vgpu.create_mdev, (_PARENT, '../x', _UUID)),
                (privileged_vgpu.create_mdev, (_PARENT, 'nvidia-231', '../x')),
                (privileged_vgpu.remove_mdev, ('../../x',)),
                (privileged_vgpu.undefine_mdev, ('--help',)),
                (privileged_vgpu.set_vgpu_type, ('../x', 1145)),
                (privileged_vgpu.set_vgpu_type, (_PARENT, '1145')),
                (privileged_vgpu.set_vgpu_type, (_PARENT, -1)),
                (privileged_vgpu.set_vgpu_placement, ('../x', 0)),
                (privileged_vgpu.set_vgpu_placement, (_PARENT, '0,x=1')),
                (privileged_vgpu.set_vgpu_placement, (_UUID, -1)),
                (privileged_vgpu.vfio_holders, ('../x',)),
                (privileged.create_gpu_instance, ('x', 19, 0, 1)),
                (privileged.create_gpu_instance, (_PARENT, -1, 0, 1)),
                (privileged.create_gpu_instance, (_PARENT, 19, 99, 1)),
                (privileged.create_gpu_instance, (_PARENT, 19, 0, '1')),
                (privileged.destroy_gpu_instance, (_PARENT, -1))):
            error = self.assertRaises(exception.InvalidValue, call,
                                      *arguments)
            self.assertIn('not valid', str(error))

    def test_errors_of_nvml_arrive(self):
        if os.path.exists('/proc/driver/nvidia/version'):
            self.skipTest('this machine has an NVIDIA driver')
        error = self.assertRaises(
            exception.NvmlError, privileged.create_gpu_instance,
            _PARENT, 19, 6, 1)
        self.assertEqual('LIBRARY_NOT_FOUND', error.symbol)
