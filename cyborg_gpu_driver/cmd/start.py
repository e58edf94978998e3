# SPDX-License-Identifier: Apache-2.0

"""The entry point of the ``cyborg-gpu`` process.

The module imports nothing before :func:`main` runs. The imports of a command
take so long that the user may press Ctrl-C meanwhile.
"""

from __future__ import annotations

_SIGINT_EXIT = 130
"""The exit code of a shell for a process that SIGINT (2) ended: 128 + 2."""


def main() -> int:
    """Run the command of ``sys.argv``; return its exit code."""
    try:
        from cyborg_gpu_driver.cmd import main as program
        return program.main()
    except KeyboardInterrupt:
        return _SIGINT_EXIT
