# SPDX-License-Identifier: Apache-2.0

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
