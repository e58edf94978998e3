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

"""Options of the commands that query a cloud about this host."""

from __future__ import annotations

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add ``--os-cloud`` and ``--host``."""
    parser.add_argument(
        '--os-cloud', metavar='NAME',
        help='cloud of clouds.yaml to read accelerator requests from '
             '(default: the one that OS_CLOUD or OS_AUTH_URL names, if any)')
    parser.add_argument(
        '--host', metavar='NAME',
        help='this host as Cyborg names it (default: [DEFAULT] host of '
             'cyborg.conf, or the host name)')
