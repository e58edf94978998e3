# SPDX-License-Identifier: Apache-2.0

"""A server's ramdisk: the released ironic-python-agent, locked in.

usage: python -m cyborg_gpu_driver.tests.ironic.ramdisk DIRECTORY

The agent erases disks and powers machines off if it can. Here it cannot: it
runs as a user without privileges, and the only programs that it finds are
those in DIRECTORY/bin, which do no harm.
"""

import os
import signal
import sys

from cyborg_gpu_driver.tests import nobody
from cyborg_gpu_driver.tests.ironic import leash

ADDRESS = 'SERVER_ADDRESS'
"""Environment variable: the MAC address of the only network card."""


def main(directory: str) -> None:
    """Run the agent with the configuration file DIRECTORY/agent.conf."""
    os.environ['PATH'] = os.path.join(directory, 'bin')
    # Has the plug-in that describes the other hardware to the agent.
    sys.path.insert(0, os.path.join(directory, 'plugins'))
    # Only root can keep what Python compiles for the next boot.
    from ironic_python_agent.cmd import agent

    if os.geteuid() == 0:
        nobody.become()
    # Not earlier: a change of user clears this setting.
    leash.put_on(signal.SIGKILL)
    sys.argv[1:] = ['--config-file', os.path.join(directory, 'agent.conf')]
    agent.run()


if __name__ == '__main__':
    main(sys.argv[1])
