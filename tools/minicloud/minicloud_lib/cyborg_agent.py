# SPDX-License-Identifier: Apache-2.0

"""cyborg-agent, with another interval between its reports.

Cyborg has no option for this interval. The task sets no spacing, so
oslo.service runs it every 60 seconds.

usage: python -m minicloud_lib.cyborg_agent SECONDS --config-file FILE
"""

from __future__ import annotations

import sys

from oslo_service import periodic_task


def main() -> int | None:
    """Run cyborg-agent; the first argument is the interval in seconds."""
    periodic_task.DEFAULT_INTERVAL = float(sys.argv.pop(1))
    # oslo.service sets the interval of a task when it defines the class, so
    # import Cyborg after the change.
    from cyborg.cmd import agent
    return agent.main()


if __name__ == '__main__':
    sys.exit(main())
