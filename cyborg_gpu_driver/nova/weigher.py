# SPDX-License-Identifier: Apache-2.0
"""Weighs hosts by how much of their GPUs' free capacity a request costs.

Only nova-scheduler imports this module::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers,
        cyborg_gpu_driver.nova.weigher.GpuWeigher
"""

from __future__ import annotations

import math

from nova.scheduler import weights
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.scheduling import chooser
from cyborg_gpu_driver.nova.weighing import cost
from cyborg_gpu_driver.nova.weighing import placement

LOG = logging.getLogger(__name__)


class GpuWeigher(weights.BaseHostWeigher):
    """Prefers the host with the best GPU by the placement policy.

    A host about which nothing is known gets the average weight of the others.
    A host without room, for example after a claim, gets the least. A request
    without a GPU gives all hosts the weight 0 and does not query Placement.
    """

    # The weights are in this range already, except those of impossible
    # hosts, which are below all others.
    minval = 0.0
    maxval = 1.0

    def __init__(self):
        super().__init__()
        self._chooser = chooser.shared()

    def weight_multiplier(self, host_state):
        return abs(chooser.multiplier(host_state))

    def weigh_objects(self, weighed_obj_list, weight_properties):
        hosts = [weighed.obj for weighed in weighed_obj_list]
        if not (any(map(chooser.multiplier, hosts))
                and chooser.resource_classes(weight_properties)):
            return [0.0] * len(hosts)
        request = self._chooser.request(
            weight_properties, _wish(weight_properties), hosts)
        if request is None:
            return [0.0] * len(hosts)
        with self._chooser.choosing(request) as now:
            weights = self._weigh(now, hosts)
            # The host that Nova puts first, if this weigher is the last.
            totals = [weighed.weight + self.weight_multiplier(host) * weight
                      for weighed, host, weight in zip(
                          weighed_obj_list, hosts, weights, strict=True)]
            self._chooser.promise(now, hosts[totals.index(max(totals))])
        return weights

    def _weigh_object(self, obj, weight_properties):
        return self.weigh_objects(
            [weights.WeighedHost(obj, 0.0)], weight_properties)[0]

    def _weigh(self, request, hosts):
        for host in hosts:
            self._chooser.keep_admitted(request, host)
        rows = self._chooser.figures(request, hosts)
        return cost.weights(
            [chooser.put_best_first(host.allocation_candidates, row)
             if row else math.inf
             for host, row in zip(hosts, rows, strict=True)])


def _wish(spec):
    try:
        return chooser.wish_of(spec)
    except exception.InvalidValue as error:
        # The filter refuses such a flavor; a weigher cannot.
        LOG.error('%s; the option placement of nova.conf applies', error)
        return placement.Wish()
