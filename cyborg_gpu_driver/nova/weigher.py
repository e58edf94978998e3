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
"""Weighs hosts by what a request costs of what their GPUs have left.

For nova-scheduler, the only one that imports it::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers,
        cyborg_gpu_driver.nova.weigher.GpuWeigher
"""

from __future__ import annotations

import math
import statistics

from nova.scheduler import weights
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.scheduling import chooser
from cyborg_gpu_driver.nova.weighing import placement

LOG = logging.getLogger(__name__)


class GpuWeigher(weights.BaseHostWeigher):
    """Prefers the host with the best GPU by the placement policy.

    Hosts of which nothing is known weigh as much as the others on average,
    and those without room, as after a claim, least. Requests without a GPU
    weigh nothing and ask Placement for nothing.
    """

    def __init__(self):
        super().__init__()
        self._chooser = chooser.shared()

    def weight_multiplier(self, host_state):
        return abs(chooser.multiplier(host_state))

    def weigh_objects(self, weighed_obj_list, weight_properties):
        return self._weigh([weighed.obj for weighed in weighed_obj_list],
                           weight_properties)

    def _weigh_object(self, obj, weight_properties):
        return self._weigh([obj], weight_properties)[0]

    def _weigh(self, hosts, spec):
        if not (any(map(chooser.multiplier, hosts))
                and chooser.resource_classes(spec)):
            return [0.0] * len(hosts)
        request = self._chooser.request(spec, _wish(spec), hosts)
        if request is None:
            return [0.0] * len(hosts)
        rows = self._chooser.figures(request, hosts)
        figures = [chooser.put_best_first(host.allocation_candidates, row)
                   for host, row in zip(hosts, rows, strict=True)]
        filled = _filled_in(figures)
        # What Nova will most probably claim.
        self._chooser.promise(request, hosts[filled.index(min(filled))])
        return [-figure for figure in filled]


def _wish(spec):
    try:
        return chooser.wish_of(spec)
    except exception.InvalidValue as error:
        # The filter refuses such a flavor; a weigher cannot.
        LOG.error('%s; the option decides', error)
        return placement.Wish()


def _filled_in(figures):
    """The figures, with one for hosts that have none or an infinite one."""
    known = [figure for figure in figures
             if figure is not None and math.isfinite(figure)]
    if not known:
        return [0.0] * len(figures)
    mean, low, high = statistics.fmean(known), min(known), max(known)
    beyond = high - low or 1.0
    return [mean if figure is None
            else min(max(figure, low - beyond), high + beyond)
            for figure in figures]
