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

"""Several commands of nova-manage, one after the other.

Each would take seconds to import what the others have imported already; so
it is imported once, and each has a fork of its own.

usage: python -m minicloud_lib.nova_manage CONFIG_FILE WORD... [-- WORD...]...
"""

from __future__ import annotations

import itertools
import os
import sys

from nova.cmd import manage


def main(arguments: list[str]) -> int:
    """Run the commands; the first code that is not 0 ends it."""
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
