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

"""How busy GPUs are, by an answer of Prometheus. Pure.

The metrics are those of ``cyborg-gpu exporter --nvml``
(:mod:`cyborg_gpu_driver.metrics.definitions`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception

Gpu = tuple[str, str]
"""A compute node, as Placement names it, and a PCI address."""

_OF_GPU = 'sum by (Hostname, address) (avg_over_time({}[2m]))'
QUERY = ' or '.join(map(_OF_GPU.format, (
    'cyborg_gpu_vgpu_utilization_ratio', 'cyborg_gpu_utilization_ratio')))
"""The sum over all vGPUs of a GPU, or otherwise the value of the GPU itself,
which NVML has for a GPU that is not in MIG mode. The query takes the mean of
two minutes, because a single sample says little."""
_FORM = ('expected the vector of an instant query, each with Hostname, '
         'address and a number')


def parse(document: Any) -> dict[Gpu, float]:
    """Return the part of the time in which each GPU is busy, 0 to 1.

    Prometheus' HTTP API, "Instant queries": ``{"status": "success", "data":
    {"resultType": "vector", "result": [{"metric": {...}, "value": [TIME,
    "0.5"]}]}}``.

    :param document: the answer, from JSON.
    :raises InvalidValue: if the answer has another form.
    """
    data = _of(document, dict).get('data')
    if (document.get('status') != 'success'
            or _of(data, dict).get('resultType') != 'vector'):
        raise _wrong(document)
    return dict(map(_item, _of(data.get('result'), list)))


def _item(item):
    labels: Mapping[str, Any] = _of(_of(item, dict).get('metric'), dict)
    value = item.get('value')
    try:
        _time, text = value
        number = float(_of(text, str))
    except (TypeError, ValueError) as error:
        raise _wrong(item) from error
    if math.isnan(number):
        raise _wrong(item)
    return ((_of(labels.get('Hostname'), str),
             _of(labels.get('address'), str)), min(1.0, max(0.0, number)))


def _of(value, kind):
    if not isinstance(value, kind):
        raise _wrong(value)
    return value


def _wrong(value):
    return exception.InvalidValue(
        what='answer of Prometheus', value=repr(value)[:100], expected=_FORM)
