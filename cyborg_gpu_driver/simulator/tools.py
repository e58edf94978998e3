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

"""Programs of a simulated machine, which end as running them would."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from oslo_concurrency import processutils

_SRIOV_MANAGE = '/usr/lib/nvidia/sriov-manage'
_NOT_LOCKED = (errno.EBUSY, errno.EAGAIN)


def sriov_manage(machine) -> Callable[[str, bool], str]:
    """NVIDIA's script; prints what the real one does.

    :returns: a function of a GPU's address and whether it is to get virtual
        functions or to lose them; it raises FileNotFoundError if the script
        is not there and ProcessExecutionError if it fails.
    """
    def run(address, enable):
        verb = 'Enabling' if enable else 'Disabling'
        said = f'{verb} VFs on {address}\n'
        try:
            _need_root(machine)
            machine.sriov_manage(address, enable)
        except FileNotFoundError as error:
            raise _not_installed(_SRIOV_MANAGE) from error
        except OSError as error:
            # The driver does not say why it does not give up the GPU.
            complaint = (
                f'Cannot obtain unbindLock for {address}'
                if error.errno in _NOT_LOCKED else
                f'{_SRIOV_MANAGE}: line 184: echo: write error: '
                f'{error.strerror}')
            raise processutils.ProcessExecutionError(
                stdout=said, stderr=f'{complaint}\n', exit_code=1,
                cmd=f'{_SRIOV_MANAGE} {"-e" if enable else "-d"} {address}'
            ) from error
        return said
    return run


def mdevctl(machine) -> Callable[..., str]:
    """mdevctl, of which there is ``undefine --uuid UUID`` alone.

    :returns: a function of its arguments; it raises FileNotFoundError if
        mdevctl is not there and ProcessExecutionError if it fails.
    """
    def run(*arguments):
        command = ' '.join(('mdevctl', *arguments))
        match arguments:
            case ('undefine', '--uuid' | '-u', uuid):
                pass
            case _:
                raise processutils.ProcessExecutionError(
                    stderr='error: unexpected argument\n', exit_code=2,
                    cmd=command)
        try:
            _need_root(machine)
            machine.undefine_mdev(uuid)
        except FileNotFoundError as error:
            raise _not_installed('mdevctl') from error
        except OSError as error:
            reason = ('No devices match the specified uuid'
                      if error.errno == errno.ENODEV else error.strerror)
            raise processutils.ProcessExecutionError(
                stderr=f'Error: {reason}\n', exit_code=1, cmd=command
            ) from error
        return ''
    return run


def _need_root(machine):
    if not machine.privileged:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _not_installed(program):
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT),
                             program)
