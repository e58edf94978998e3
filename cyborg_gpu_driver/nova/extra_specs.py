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
"""The flavor extra specs of this driver, for Nova's API.

nova-api finds the validators by the entry point
``nova.api.extra_spec_validators``. It then refuses a flavor with an extra
spec ``gpu:...`` of another name or form.
"""

from __future__ import annotations

from nova.api.validation.extra_specs import base

from cyborg_gpu_driver.nova.weighing import placement


def register() -> list[base.ExtraSpecValidator]:
    """Return the validators; nova-api calls this when it starts."""
    return [
        base.ExtraSpecValidator(
            name=placement.PLACEMENT,
            description='Which GPU to prefer: the one where the request '
                        'costs least capacity, the emptiest, only one '
                        'without servers of other projects, or the one '
                        'where servers slow each other down least.',
            value={'type': str, 'enum': [
                item.value for item in placement.Placement]}),
        base.ExtraSpecValidator(
            name=placement.APPLICATION,
            description='The application that servers of the flavor run, '
                        'with its name in the interference file of '
                        'nova-scheduler.',
            value={'type': str, 'pattern': placement.NAME}),
        base.ExtraSpecValidator(
            name=f'{placement.PREFER}{{trait}}',
            description='How much to prefer a GPU whose resource provider '
                        'has the trait. A negative number avoids it. 1 '
                        'weighs as much as the difference between the best '
                        'and the worst GPU by the placement policy.',
            parameters=[{'name': 'trait', 'pattern': placement.TRAIT}],
            value={'type': str, 'pattern': placement.WEIGHT}),
    ]
