# SPDX-License-Identifier: Apache-2.0

"""Stand-ins for the programs that run on a simulated machine.

Each function returns a function of the program's arguments, which returns what
the program prints. It raises FileNotFoundError if the program is not installed
and ProcessExecutionError if the program fails.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable
from typing import Any

import pynvml

from cyborg_gpu_driver.simulator.driver import gpu as driver_gpu

_SRIOV_MANAGE = '/usr/lib/nvidia/sriov-manage'
_NOT_LOCKED = (errno.EBUSY, errno.EAGAIN)
_NOT_TRIED = (errno.ENODEV, errno.EACCES)


def sriov_manage(machine) -> Callable[[str, bool], str]:
    """Return a stand-in for NVIDIA's script, with the output of the script.

    Its arguments are an address, and whether to enable or to disable the
    virtual functions.
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
            _persist(machine, gpu.address, enable=True)


def mdevctl(machine) -> Callable[..., str]:
    """Return a stand-in for mdevctl, with only ``undefine --uuid UUID``."""
    def run(*arguments):
        command = ' '.join(('mdevctl', *arguments))
        if len(arguments) != 3 or arguments[:2] != ('undefine', '--uuid'):
            raise _failure(command, 2, 'error: unexpected argument\n')
        try:
            _need_root(machine)
            machine.undefine_mdev(arguments[2])
        except FileNotFoundError as error:
            raise _not_installed('mdevctl') from error
        except OSError as error:
            reason = ('No devices match the specified uuid'
                      if error.errno == errno.ENODEV else error.strerror)
            raise _failure(command, 1, f'Error: {reason}\n') from error
        return ''
    return run


def fabric_manager(machine) -> Callable[..., str]:
    """Return a stand-in for nv-fabricmanager, with only ``--version``."""
    def run(*arguments):
        with machine.operation():
            if machine.state.fabric_manager is None:
                raise _not_installed('nv-fabricmanager')
            version = (machine.state.fabric.version
                       or machine.host.driver_version)
        return f'Fabric Manager version is : {version}\n'
    return run


def nvidia_smi(machine) -> Callable[..., str]:
    """Return a stand-in for nvidia-smi.

    It has only ``--gpu-reset -i ADDRESS`` and ``-i ADDRESS -pm 0|1``. The
    output of a reset is as in NVIDIA/NVSentinel#1690. The exit statuses are
    those of nvidia-smi's manual page ("RETURN VALUE"), which are codes of
    NVML.
    """
    def run(*arguments):
        command = ' '.join(('nvidia-smi', *arguments))

        def fail(status, text):
            return _failure(command, status, f'{text}\n')
        match arguments:
            case ('--gpu-reset', '-i', name):
                what, act = 'reset', _reset
            case ('-i', name, '-pm', '0' | '1' as mode):
                what = 'set persistence mode for'
                act = functools.partial(_persist, enable=mode == '1')
            case _:
                raise fail(2, 'Invalid combination of input arguments')
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
            status, reason = _REASONS.get(
                error.errno or 0, (255, str(error.strerror)))
            raise fail(status,
                       f'Unable to {what} GPU {name}: {reason}') from error
    return run


_NO_NVML = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        "NVIDIA-SMI has failed because it couldn't communicate with the "
        'NVIDIA driver.',
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.",
}
"""What nvidia-smi prints if NVML does not start, by the code of NVML."""
_REASONS = {errno.EBUSY: (255, 'In use by another client'),
            errno.EIO: (15, 'GPU is lost'),
            errno.ENXIO: (6, 'No devices were found'),
            errno.ENOTCONN: (255, 'Fabric Manager is not running')}
"""Exit status and reason by errno."""


@contextlib.contextmanager
def _smi(machine, address):
    """Count a run of nvidia-smi, and yield the GPU.

    :raises OSError: ENXIO if NVML has no such GPU, or the code of a fault.
    """
    with machine.operation(write=True):
        gpu = next((gpu for gpu in machine.library.visible()
                    if gpu.address == address), None)
        with machine.program('nvidia-smi', gpu and gpu.address):
            if gpu is None:
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
            yield gpu


def _reset(machine, address):
    with _smi(machine, address) as gpu:
        driver_gpu.by_driver(gpu)
    return f'GPU {address} was successfully reset.\nAll done.\n'


def _persist(machine, address, enable):
    """Set the persistence mode.

    nvidia-smi asks nvidia-persistenced if that runs, otherwise NVML. The
    daemon cannot open a GPU that was unbound since it started
    (NVIDIA/k8s-dra-driver-gpu#1037).
    """
    with _smi(machine, address) as gpu:
        if not machine.state.persistenced:
            gpu.state.persistence = enable
        elif enable and gpu.state.returned:
            raise OSError(errno.ECONNREFUSED,
                          os.strerror(errno.ECONNREFUSED))
        else:
            gpu.state.daemon = enable
    word = 'Enabled' if enable else 'Disabled'
    return f'{word} persistence mode for GPU {address}.\nAll done.\n'


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


# libvirt, with the interface of its Python module.
#
# Only some calls of a read-only connection exist: those that list domains and
# show their XML (libvirt's reference of the Python bindings).

class LibvirtError(Exception):
    """Stands for libvirt.libvirtError. Callers use only its text."""


class Connection:
    """The connection that ``libvirt.openReadOnly`` returns.

    :raises LibvirtError: if the machine has a fault of the name ``libvirt``.
    """

    def __init__(self, machine: Any):
        self._machine = machine
        self._open = True
        machine.faults.wait('libvirt')
        fault = machine.faults.symbol('libvirt', None)
        if fault:
            raise LibvirtError(os.strerror(fault.code))

    def listAllDomains(self, flags: int) -> list[Domain]:
        """Return all domains, running or not."""
        self.getVersion()
        with self._machine.operation():
            return [Domain(self._machine, uuid)
                    for uuid in self._machine.state.domains]

    def getVersion(self) -> int:
        """Return the hypervisor's version; fail on a closed connection."""
        if not self._open:
            raise LibvirtError('invalid connection pointer')
        return 8002000

    def close(self) -> int:
        self._open = False
        return 0


class Domain:
    """A ``virDomain``."""

    def __init__(self, machine: Any, uuid: str):
        self._machine = machine
        self._uuid = uuid

    def XMLDesc(self, flags: int) -> str:
        with self._machine.operation():
            xml = self._machine.state.domains.get(self._uuid)
        if xml is None:
            raise LibvirtError('Domain not found')
        return xml
