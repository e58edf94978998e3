# SPDX-License-Identifier: Apache-2.0
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
    ]
