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
