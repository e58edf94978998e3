# SPDX-License-Identifier: Apache-2.0

"""The plug-in of ``openstack``, which imports this module at every start."""

from __future__ import annotations

import argparse
from typing import Any

from osc_lib import utils

from cyborg_gpu_driver.cloud import connection

API_NAME = 'gpu'
API_VERSION_OPTION = 'os_gpu_api_version'
API_VERSIONS = ('1',)
"""Versions of the commands, which use only the APIs of other services."""
DEFAULT_API_VERSION = '1'


def make_client(instance: Any) -> connection.Cloud:
    """Return the client of the commands: the cloud of the user's login."""
    made = instance.sdk_connection
    return connection.Cloud(
        made, made.config.name or made.config.auth.get('auth_url', ''))


def build_option_parser(parser: argparse.ArgumentParser
                        ) -> argparse.ArgumentParser:
    """Add the option that every plug-in must have."""
    parser.add_argument(
        '--os-gpu-api-version', metavar='<gpu-api-version>',
        default=utils.env('OS_GPU_API_VERSION'),
        help='version of the gpu commands, default='
             f'{DEFAULT_API_VERSION} (Env: OS_GPU_API_VERSION)')
    return parser
