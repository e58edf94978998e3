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
