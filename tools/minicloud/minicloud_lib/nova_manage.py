# SPDX-License-Identifier: Apache-2.0

"""Run several commands of nova-manage in sequence.

Each command would take seconds to import the same modules. This process
imports them once and forks for each command.

usage: python -m minicloud_lib.nova_manage CONFIG_FILE WORD... [-- WORD...]...
"""

from __future__ import annotations

import itertools
import os
import sys

from nova.cmd import manage


def main(arguments: list[str]) -> int:
    """Run the commands until one fails; return 1 if one failed, else 0."""
    config, *words = arguments
    for separates, command in itertools.groupby(words, '--'.__eq__):
        if separates:
            continue
        sys.argv = ['nova-manage', '--config-file', config, *command]
        child = os.fork()
        if not child:
            sys.exit(manage.main())
        _, status = os.waitpid(child, 0)
        if status:
            return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
