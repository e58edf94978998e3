# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu-nova-compute``: nova-compute whose servers keep their GPUs.

The program is the released nova-compute, whose libvirt driver
:mod:`cyborg_gpu_driver.nova.patches` extends before the start. It attaches
vGPUs without mdev and groups of GPUs, and servers have their accelerators
after the boot of the host and in rescue mode.

The kernel's name of the process says whether the driver is extended:
:mod:`cyborg_gpu_driver.host.services` reads it, also from another container
in the PID namespace of the host.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.nova import capability
from cyborg_gpu_driver.nova import handles
from cyborg_gpu_driver.nova import patches

_ROOT = '/sys'
_COMM = '/proc/self/comm'


def with_credentials(cyborg: Any, context_module: Any) -> None:
    """Let Nova ask Cyborg without a user, such as at the boot of the host.

    Nova's client uses the token of the requesting user. When nova-compute
    starts, it has a context without a token, and each request of the client
    fails. The client then uses the user of ``[service_user]``, as Nova does
    for volumes (nova/context.py: ``get_nova_service_user_context``).
    """
    original = cyborg.get_client

    def get_client(context: Any) -> Any:
        if not context.auth_token and not context.user_auth_plugin:
            context = context_module.get_nova_service_user_context()
        return original(context)
    cyborg.get_client = get_client


def requests(cyborg: Any) -> handles.Requests:
    """Return a reader of accelerator requests that uses Nova's client."""
    return handles.Requests(
        lambda context, server:
        cyborg.get_client(context).get_arqs_for_instance(server))


def main() -> int:
    """Run nova-compute with the options of the command line.

    :returns: 1 if nova-compute is not started; otherwise Nova decides.
    """
    # Nova takes seconds to import: the agent must not see another name then.
    name_process()
    try:
        # Import this module of Nova first: it selects the threading model
        # of the process.
        command = importlib.import_module('nova.cmd.compute')
        context = importlib.import_module('nova.context')
        cyborg = importlib.import_module('nova.accelerator.cyborg')
        driver = importlib.import_module('nova.virt.libvirt.driver')
        errors = importlib.import_module('nova.exception')
    except ImportError as error:
        _say(f'Nova cannot be imported: {error}. Install '
             'cyborg_gpu_driver where nova-compute is installed; nova-compute '
             'was not started')
        return 1

    def refuse(reason: str) -> Exception:
        return errors.AcceleratorRequestOpFailed(op='attach', msg=reason)

    version = capability.nova_version()
    reason = capability.mismatch(driver.LibvirtDriver, version)
    if reason:
        _say(f'{reason}; nova-compute was not started. Install a release of '
             'cyborg_gpu_driver for this Nova, or start nova-compute itself, '
             'which attaches neither vGPUs on virtual functions of vendor '
             'VFIO nor groups of GPUs')
        return 1
    patches.Patches(handles.HandleReader(pci.Sysfs(_ROOT)),
                    requests(cyborg), refuse).install(driver.LibvirtDriver)
    with_credentials(cyborg, context)
    _say(f'Nova {version} attaches vGPUs on virtual functions of vendor VFIO, '
         'groups of GPUs, and accelerators when the host boots and in rescue '
         'mode')
    # Nova derives the names of its configuration files from the program's.
    sys.argv[0] = 'nova-compute'
    command.main()
    return 0


def name_process() -> None:
    """Set the kernel's name of this process, as proc_pid_comm(5) says."""
    try:
        with open(_COMM, 'w', encoding='ascii') as stream:
            stream.write(services.PATCHED)
    except OSError as error:
        # proc may be read-only. nova-compute must start all the same.
        _say(f'{_COMM} cannot be written, so cyborg-agent may offer no vGPUs '
             f'on demand: {error.strerror}')


def _say(message: str) -> None:
    # Nova's log is not set up yet.
    sys.stderr.write(f'{services.OURS}: {message}\n')
