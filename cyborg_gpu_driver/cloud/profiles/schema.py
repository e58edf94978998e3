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
"""The schema of the definition file of profiles, flavors and limits."""

from __future__ import annotations

import os_resource_classes as orc

from cyborg_gpu_driver import schema
from cyborg_gpu_driver.report.content import names

VERSION = 'v1'
GPU_PROFILE = 'gpu-profile'
"""The format of a GPU's profile, which ``definition.profile_class`` parses."""

_CLASSES = (orc.FPGA, 'GPU', orc.PGPU, orc.VGPU)
"""Resource classes that Cyborg 17 accepts beside custom ones
(``SUPPORT_RESOURCES``)."""
_DB_MAX = (1 << 31) - 1
"""The greatest number that Nova's and Keystone's databases can store."""
HIGHEST_LIMIT = _DB_MAX
"""The greatest limit that Keystone accepts."""
_UNLIMITED = -1
_CUSTOM = 'CUSTOM_[A-Z0-9_]+'
_CUSTOM_TEXT = 'CUSTOM_ followed by upper-case letters, digits and _'

# Cyborg's own pattern, and the length of its database column.
_PROFILE_NAME = schema.matching(
    '[A-Za-z0-9_-]{1,255}', 'up to 255 letters, digits, - and _',
    'slice-10gb')
_FLAVOR_NAME = schema.matching(
    r'[^\s\x00-\x1f](?:[^\x00-\x1f]{0,253}[^\s\x00-\x1f])?',
    'text of up to 255 printable characters without leading or trailing '
    'spaces')
# As in Nova's schema of extra specs.
_SPEC_KEY = schema.matching(
    '[a-zA-Z0-9_:. -]{1,255}', 'letters, digits, spaces, - _ : and .')
_PROJECT = schema.matching(
    r'\s*\S(?s:.*)', 'the name or UUID of a project')
_RESOURCE_CLASS = {
    **schema.matching(
        f'{"|".join(_CLASSES)}|{_CUSTOM}', 'a resource class of Cyborg: '
        f'{", ".join(_CLASSES)}, or {_CUSTOM_TEXT}', 'CUSTOM_NVIDIA_1G_10GB'),
    'maxLength': names.CUSTOM_NAME_MAX}
_TRAIT = {
    **schema.matching(_CUSTOM, f'a trait that Cyborg accepts: {_CUSTOM_TEXT}',
                      'CUSTOM_GPU_ARCH_HOPPER'),
    'maxLength': names.CUSTOM_NAME_MAX}
_GPU = {'type': 'string', 'format': GPU_PROFILE,
        'description': "a GPU's profile", 'examples': ['1g.10gb']}
_GPU_OR_CLASS = {'gpu': _GPU, 'resources': _RESOURCE_CLASS}
_ONE_OF_THEM = [{'required': ['gpu']}, {'required': ['resources']}]

_GROUP = schema.mapping({}, {
    **_GPU_OR_CLASS,
    'count': schema.integer(1, _DB_MAX),
    'together': schema.TRUTH,
    'required': schema.listing(_TRAIT),
    'forbidden': schema.listing(_TRAIT)}, oneOf=_ONE_OF_THEM)
_PROFILE = schema.mapping({
    'name': _PROFILE_NAME,
    'groups': schema.listing(_GROUP, 1)}, {
    'description': schema.TEXT})
_FLAVOR = schema.mapping({
    'name': _FLAVOR_NAME,
    'profile': {**_PROFILE_NAME, 'description': "a device profile's name"},
    'vcpus': schema.integer(1, _DB_MAX),
    'ram': schema.integer(1, _DB_MAX),
    'disk': schema.integer(0, _DB_MAX)}, {
    'description': schema.TEXT,
    'public': schema.TRUTH,
    'projects': schema.listing(_PROJECT),
    'extra_specs': {
        'type': 'object', 'propertyNames': _SPEC_KEY,
        'additionalProperties': {'type': 'string', 'maxLength': 255}}})
_LIMIT = schema.mapping({'default': schema.integer(_UNLIMITED, _DB_MAX)}, {
    **_GPU_OR_CLASS,
    'projects': {
        'type': 'object', 'propertyNames': _PROJECT,
        'additionalProperties': schema.integer(_UNLIMITED, _DB_MAX)}},
    oneOf=_ONE_OF_THEM)
DEFINITION = schema.mapping({'version': {'const': VERSION}}, {
    'profiles': schema.listing(_PROFILE),
    'flavors': schema.listing(_FLAVOR),
    'limits': schema.listing(_LIMIT)})
