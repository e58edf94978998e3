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

"""How records hold a MIG layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import fields
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import spec


def to_record(layout: spec.MigLayout) -> dict[str, Any]:
    """For JSON."""
    return {
        'enabled': layout.enabled, 'pending': layout.pending,
        'instances': [
            {'profile_id': item.profile_id, 'start': item.placement.start,
             'size': item.placement.size,
             'compute': [list(part) for part in item.compute]}
            for item in layout.instances]}


def from_record(record: Mapping[str, Any]) -> spec.MigLayout:
    """What :func:`to_record` wrote.

    :raises KeyError, TypeError, ValueError: if it was something else.
    """
    return spec.MigLayout(
        fields.truth(record['enabled']), fields.truth(record['pending']),
        tuple(sorted(spec.MigInstanceSpec(
            model.Placement(fields.number(item['start']),
                            fields.number(item['size'])),
            fields.number(item['profile_id']),
            tuple(sorted((fields.number(start), fields.number(size))
                         for start, size in item['compute'])))
            for item in record['instances'])))
