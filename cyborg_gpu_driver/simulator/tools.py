# SPDX-License-Identifier: Apache-2.0

"""Stand-ins for the programs that run on a simulated machine."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable

import pynvml

_SRIOV_MANAGE = '/usr/lib/nvidia/sriov-manage'
_NOT_LOCKED = (errno.EBUSY, errno.EAGAIN)
_NOT_TRIED = (errno.ENODEV, errno.EACCES)


def sriov_manage(machine) -> Callable[[str, bool], str]:
    """Return a stand-in for NVIDIA's script, with the output of the script.

    :returns: a function of a GPU's address and of whether to enable or
        disable its virtual functions. It returns what the script prints. It
        raises FileNotFoundError if the script is not installed and
        ProcessExecutionError if the script fails.
    """
    def run(address, enable):
        verb = 'Enabling' if enable else 'Disabling'
        said = f'{verb} VFs on {address}\n'
        try:
            _need_root(machine)
            machine.sriov_manage(address, enable, unless_open=True)
        except FileNotFoundError as error:
            raise _not_installed(_SRIOV_MANAGE) from error
        except OSError as error:
            if error.errno not in _NOT_TRIED:
                _resume(machine)
            # The driver does not say why it refuses to release the GPU.
            complaint = (
                f'Cannot obtain unbindLock for {address}'
                if error.errno in _NOT_LOCKED else
                f'{_SRIOV_MANAGE}: line 184: echo: write error: '
                f'{error.strerror}')
            raise _failure(
                f'{_SRIOV_MANAGE} {"-e" if enable else "-d"} {address}', 1,
                f'{complaint}\n', said) from error
        _resume(machine)
        return said
    return run


def _resume(machine):
    """Do what resume_services of the script does: ``nvidia-smi -pm 1``.

    The script does it for all GPUs, at the end of each attempt and also if it
    does not get the lock, and ignores errors.
    """
    for gpu in machine.gpus:
        with contextlib.suppress(OSError):
            machine.smi_persistence(gpu.address, True)


def mdevctl(machine) -> Callable[..., str]:
    """Return a stand-in for mdevctl, with only ``undefine --uuid UUID``.

    :returns: a function of mdevctl's arguments; it raises FileNotFoundError
        if mdevctl is not installed and ProcessExecutionError if it fails.
    """
    def run(*arguments):
        command = ' '.join(('mdevctl', *arguments))
        match arguments:
            case ('undefine', '--uuid' | '-u', uuid):
                pass
            case _:
                raise _failure(command, 2, 'error: unexpected argument\n')
        try:
            _need_root(machine)
            machine.undefine_mdev(uuid)
        except FileNotFoundError as error:
            raise _not_installed('mdevctl') from error
        except OSError as error:
            reason = ('No devices match the specified uuid'
                      if error.errno == errno.ENODEV else error.strerror)
            raise _failure(command, 1, f'Error: {reason}\n') from error
        return ''
    return run


def fabric_manager(machine) -> Callable[..., str]:
    """Return a stand-in for nv-fabricmanager, with only ``--version``.

    :returns: a function of nv-fabricmanager's arguments; it raises
        FileNotFoundError if nv-fabricmanager is not installed.
    """
    def run(*arguments):
        if arguments not in (('--version',), ('-v',)):
            raise _failure(' '.join(('nv-fabricmanager', *arguments)), 1,
                           'invalid option\n')
        with machine.operation():
            if machine.state.fabric_manager is None:
                raise _not_installed('nv-fabricmanager')
            version = (machine.state.fabric.version
                       or machine.host.driver_version)
        return f'Fabric Manager version is : {version}\n'
    return run


def nvidia_smi(machine) -> Callable[..., str]:
    """Return a stand-in for nvidia-smi.

    It has only ``--gpu-reset -i GPU`` and ``-i GPU -pm 0|1``. The output of
    a reset is as in NVIDIA/NVSentinel#1690 and NVIDIA/mig-parted#181. The
    exit statuses are those of nvidia-smi's manual page ("RETURN VALUE"), which
    are codes of NVML.

    :returns: a function of nvidia-smi's arguments; it raises
        FileNotFoundError if nvidia-smi is not installed and
        ProcessExecutionError if it fails.
    """
    def run(*arguments):
        command = ' '.join(('nvidia-smi', *arguments))

        def fail(status, text):
            return _failure(command, status, f'{text}\n')
        name, act = _smi_action(arguments)
        if act is None:
            raise fail(2, 'Invalid combination of input arguments: '
                          + ' '.join(arguments))
        what = 'reset' if act is _reset else 'set persistence mode for'
        with machine.operation():
            nvml = machine.state.nvml
        if nvml:
            raise fail(nvml, _NO_NVML[nvml])
        if not machine.privileged:
            raise fail(4, f'Unable to {what} GPU {name}: Insufficient '
                          'Permissions')
        try:
            return act(machine, name)
        except FileNotFoundError as error:
            raise _not_installed('nvidia-smi') from error
        except OSError as error:
            raise fail(*_smi_refusal(what, name, error)) from error
    return run


def _smi_action(arguments):
    """Return the GPU that arguments name, and the function to call."""
    match arguments:
        case ('--gpu-reset' | '-r', '-i' | '--id', name):
            return name, _reset
        case ('--gpu-reset' | '-r', option) if option.startswith('--id='):
            return option.removeprefix('--id='), _reset
        case ('-i' | '--id', name, '-pm' | '--persistence-mode',
              '0' | '1' as mode):
            return name, functools.partial(_persist, mode == '1')
    return None, None


def _reset(machine, name):
    machine.smi_reset(name)
    return f'GPU {name} was successfully reset.\nAll done.\n'


def _persist(enable, machine, name):
    word = 'Enabled' if enable else 'Disabled'
    return (f'{word} persistence mode for GPU {name}.\n'
            if machine.smi_persistence(name, enable) else
            f'Persistence mode is already {word} for GPU {name}.\n'
            ) + 'All done.\n'


def _smi_refusal(what, name, error):
    """The exit status and the text of an error."""
    if error.errno == errno.ENXIO:
        return 6, 'No devices were found'
    if what != 'reset':
        return 255, f'Unable to {what} GPU {name}: Unknown Error'
    return (15 if error.errno == errno.EIO else 255,
            _reset_refusal(name, error))


_NO_NVML = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        "NVIDIA-SMI has failed because it couldn't communicate with the "
        'NVIDIA driver.',
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.",
}
"""What nvidia-smi prints if NVML does not start, by the code of NVML."""


def _reset_refusal(name, error):
    reason = {errno.EBUSY: 'In use by another client',
              errno.EIO: 'GPU is lost',
              errno.ENOTCONN: 'Fabric Manager is not running'}.get(
                  error.errno, error.strerror)
    text = (f'\nThe following GPUs could not be reset:\n'
            f'  GPU {name}: {reason}\n')
    if error.errno == errno.EBUSY:
        text += ('\n1 device is currently being used by one or more other '
                 'processes (e.g., Fabric Manager, CUDA application, '
                 'graphics application such as an X server, or a monitoring '
                 'application such as another instance of nvidia-smi). '
                 'Please first kill all processes using this device and all '
                 'compute applications running in the system.\n')
    return text


def _failure(command, status, stderr, stdout=''):
    """The exception that oslo.concurrency raises if a program fails."""
    # The import is slow, and most simulated hosts run no program.
    from oslo_concurrency import processutils
    return processutils.ProcessExecutionError(
        stdout=stdout, stderr=stderr, exit_code=status, cmd=command)


def _need_root(machine):
    if not machine.privileged:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _not_installed(program):
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT),
                             program)
