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

"""Payloads of the notifications of cyborg-agent.

The objects are versioned like those of Nova and Ironic. A new field raises
the minor version, any other change the major one. The documentation lists
these fields (doc/source/admin/notifications.rst).
"""

from __future__ import annotations

from oslo_versionedobjects import base
from oslo_versionedobjects import fields

# Adds the fields of the base class. This library does not build these objects
# from messages, so they are not registered.
_complete = base.VersionedObjectRegistry.register_if(False)


class _Payload(base.VersionedObject):
    """A payload about one GPU of one host."""

    OBJ_PROJECT_NAMESPACE = 'cyborg_gpu_driver'
    OBJ_SERIAL_NAMESPACE = 'cyborg_gpu_object'

    fields = {
        # Name of the compute node's resource provider.
        'host': fields.StringField(),
        # PCI address, such as 0000:3b:00.0.
        'gpu': fields.StringField(),
    }


@_complete
class HealthPayload(_Payload):
    """A GPU, or a GPU instance of it, became unhealthy, worse, or healthy."""

    VERSION = '1.0'

    fields = {
        # Placement of the GPU instance, such as "2 at 4"; None is the GPU.
        'instance': fields.StringField(nullable=True),
        'old_state': fields.StringField(),
        'state': fields.StringField(),
        # Sentences for people; of the old state if the GPU is healthy now.
        'reasons': fields.ListOfStringsField(),
    }


@_complete
class BindErrorPayload(_Payload):
    """A bind was refused or failed, and was rolled back.

    ``gpu`` is the function that Cyborg's attach handle names.
    """

    VERSION = '1.0'

    fields = {
        # UUID of the attach handle.
        'attach_handle': fields.StringField(),
        # What the handle stands for, such as nvidia-474.
        'asked_type': fields.StringField(),
        'reason': fields.StringField(),
    }


@_complete
class DifferencePayload(_Payload):
    """The records, the hardware, Cyborg and Placement disagree.

    ``cyborg-gpu doctor`` shows these differences.
    """

    VERSION = '1.0'

    fields = {
        # Such as vgpu-gone.
        'kind': fields.StringField(),
        # A handle, a vGPU, a GPU instance or a resource provider.
        'subject': fields.StringField(),
        'text': fields.StringField(),
        'remedy': fields.StringField(),
        # Whether the agent repairs it by itself.
        'is_repaired': fields.BooleanField(),
    }


@_complete
class CordonPayload(_Payload):
    """A GPU was cordoned, or its last cordon was removed."""

    VERSION = '1.1'

    fields = {
        # Source of the cordon: operator, cyborg, health or record.
        'source': fields.StringField(),
        # User name; empty if that is not known.
        'who': fields.StringField(),
        # Seconds of the epoch; None if that is not known.
        'since': fields.FloatField(nullable=True),
        'reason': fields.StringField(),
    }
