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

"""nova-compute, with server consoles that a test can write.

The console of a server is the file ``consoles/UUID`` below ``state_path``.
Without this file, the console output is that of Nova's fake driver.

usage: python -m minicloud_lib.nova_compute --config-file FILE
"""

from __future__ import annotations

import pathlib
import sys

# This import patches the standard library, so it comes first.
from nova.cmd import compute
from nova.conf import CONF
from nova.virt import fake

_nova = fake.FakeDriver.get_console_output


def _read(driver, context, instance):
    path = pathlib.Path(CONF.state_path, 'consoles', instance.uuid)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return _nova(driver, context, instance)


def main() -> int:
    fake.FakeDriver.get_console_output = _read
    return compute.main()


if __name__ == '__main__':
    sys.exit(main())
