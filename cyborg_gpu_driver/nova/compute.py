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


"""``cyborg-gpu-nova-compute``: nova-compute that takes vGPUs without mdev.

The stock nova-compute, with :mod:`cyborg_gpu_driver.nova.patches` put into
its libvirt driver before it starts.
"""

from __future__ import annotations

import importlib
import sys

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.sysfs import files as sysfs
from cyborg_gpu_driver.nova import capability
from cyborg_gpu_driver.nova import handles
from cyborg_gpu_driver.nova import patches

_PROGRAM = 'cyborg-gpu-nova-compute'
_ROOT = '/sys'


def extend(driver_class, version: str, reader: handles.HandleReader,
           refuse) -> str:
    """Extend Nova's libvirt driver.

    :param driver_class: nova.virt.libvirt.driver.LibvirtDriver.
    :param version: of Nova.
    :param reader: tells which handles are virtual functions.
    :param refuse: see :class:`cyborg_gpu_driver.nova.patches.Patches`.
    :returns: what was done, for people.
    :raises NovaMismatch: if this Nova is not one that was tested.
    """
    reason = capability.mismatch(driver_class, version)
    if reason:
        raise exception.NovaMismatch(reason=reason)
    patches.Patches(reader, refuse).install(driver_class)
    return f'Nova {version} takes vGPUs on virtual functions of vendor VFIO'


def main() -> int:
    """Run nova-compute with the options of the command line.

    :returns: 1 if it is not started; otherwise Nova decides.
    """
    try:
        # The very first of Nova: it decides how the process does threads.
        command = importlib.import_module('nova.cmd.compute')
        driver = importlib.import_module('nova.virt.libvirt.driver')
        errors = importlib.import_module('nova.exception')
    except ImportError as error:
        return _complain(f'Nova cannot be imported: {error}. Install '
                         'cyborg_gpu_driver where nova-compute is installed')

    def refuse(reason):
        return errors.AcceleratorRequestOpFailed(op='attach', msg=reason)

    try:
        said = extend(driver.LibvirtDriver, capability.nova_version(),
                      handles.HandleReader(sysfs.Sysfs(_ROOT)), refuse)
    except exception.NovaMismatch as error:
        return _complain(str(error))
    _say(said)
    # Nova looks for the configuration files of the program's name.
    sys.argv[0] = 'nova-compute'
    command.main()
    return 0


def _complain(reason):
    _say(f'{reason}; nova-compute was not started')
    return 1


def _say(message):
    # Nova's log is not set up yet.
    sys.stderr.write(f'{_PROGRAM}: {message}\n')


if __name__ == '__main__':
    sys.exit(main())
