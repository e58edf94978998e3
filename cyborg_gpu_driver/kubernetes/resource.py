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

"""Names of the resources of a Kubernetes node, such as ``nvidia.com/gpu``.

The rules are those of NVIDIA's device plugin (api/config/v1/resources.go): the
prefix may be left out, the full name has at most 63 characters, and the part
after the prefix is a DNS subdomain.
"""

from __future__ import annotations

import re

from cyborg_gpu_driver import exception

PREFIX = 'nvidia.com/'
GPU = PREFIX + 'gpu'
SHARED = '.shared'
"""What renameByDefault adds to the name of a shared resource."""

_LONGEST = 63
_SUBDOMAIN = re.compile(
    r'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*',
    re.ASCII)


def full_name(text: str) -> str:
    """Return a resource's name with its prefix.

    :raises InvalidValue: if the device plugin would not accept it.
    """
    name = text if text.startswith(PREFIX) else PREFIX + text
    if (len(name) > _LONGEST
            or not _SUBDOMAIN.fullmatch(name[len(PREFIX):])):
        raise exception.InvalidValue(
            what='resource', value=text,
            expected=f'expected {PREFIX}NAME of at most {_LONGEST} '
                     'characters, NAME in lower case letters, digits, dots '
                     f'and hyphens, such as {GPU} or {PREFIX}mig-1g.10gb')
    return name


def of_profile(name: str) -> str:
    """Return the resource of a MIG profile under strategy ``mixed``.

    :param name: the profile as NVML names it: ``1g.10gb+me``.
    """
    return PREFIX + 'mig-' + label_name(name)


def label_name(name: str) -> str:
    """Return a profile's name as the plugin and its labels write it."""
    return name.replace('+', '.')
