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
import operator
import statistics

import nova.conf
from nova.scheduler import utils
from nova.scheduler import weights
from nova.scheduler.client import report

from cyborg_gpu_driver.conf import weigher
from cyborg_gpu_driver.nova import weigher_reader
from cyborg_gpu_driver.nova.weighing import published

CONF = nova.conf.CONF
CONF.register_group(weigher.GROUP)
CONF.register_opts(weigher.OPTS, group=weigher.GROUP)

_PROFILE = 'device_profile_'
"""How Nova names the request groups of a device profile
(get_device_profile_group_requester_id in nova/accelerator/cyborg.py)."""


class GpuWeigher(weights.BaseHostWeigher):
    """Prefers the host where a GPU request costs least, or the emptiest.

    Hosts of which nothing is known weigh as much as the others on average,
    and those without room, as after a claim, least. Requests without a GPU
    weigh nothing and ask Placement for nothing.
    """

    def __init__(self):
        super().__init__()
        self._reader = weigher_reader.Reader(
            _get, CONF.gpu_weigher.cache_seconds,
            CONF.scheduler.max_placement_results)

    def weight_multiplier(self, host_state):
        return utils.get_weight_multiplier(
            host_state, 'gpu_weight_multiplier',
            CONF.gpu_weigher.gpu_weight_multiplier)

    def weigh_objects(self, weighed_obj_list, weight_properties):
        return self._weigh([weighed.obj for weighed in weighed_obj_list],
                           weight_properties)

    def _weigh_object(self, obj, weight_properties):
        return self._weigh([obj], weight_properties)[0]

    def _weigh(self, hosts, request_spec):
        multipliers = list(map(self.weight_multiplier, hosts))
        asked = _resource_classes(request_spec)
        fleet = None
        if asked and any(multipliers):
            # Of several servers Nova claims one before it weighs for the
            # next.
            fleet = self._reader.fleet(
                asked, anew=request_spec.num_instances > 1)
        if fleet is None:
            return [0.0] * len(hosts)
        figures = [_figure(fleet, host, multiplier) for host, multiplier
                   in zip(hosts, multipliers, strict=True)]
        return [-figure for figure in _filled_in(figures)]


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


def _get(url, version):
    return report.report_client_singleton().get(url, version=version)


def _resource_classes(request_spec):
    """Those of our GPUs that device profiles of the request ask for."""
    if 'requested_resources' not in request_spec:
        return ()
    return sorted({
        resource_class for group in request_spec.requested_resources or ()
        if (group.requester_id or '').startswith(_PROFILE)
        for resource_class in group.resources
        if published.is_gpu(resource_class)})


def _figure(fleet, host, multiplier):
    """What the request costs on a host; the best GPU is put first.

    With a negative multiplier it is how well it is spread there.
    """
    candidates = host.allocation_candidates
    costs = (fleet.cost(candidate['allocations'])
             for candidate in candidates)
    known = [(cost.spreading if multiplier < 0 else cost.packing, position)
             for position, cost in enumerate(costs) if cost is not None]
    if not known:
        return None
    if not CONF.gpu_weigher.order_candidates:
        return known[0][0]
    figure, position = (max if multiplier < 0 else min)(
        known, key=operator.itemgetter(0))
    candidates.insert(0, candidates.pop(position))
    return figure
