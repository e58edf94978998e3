# SPDX-License-Identifier: Apache-2.0
"""Refuses GPUs that a request must not have, and chooses on a single host.

Only nova-scheduler imports this module::

    [filter_scheduler]
    available_filters = nova.scheduler.filters.all_filters
    available_filters = cyborg_gpu_driver.nova.filter.GpuFilter
    enabled_filters = ComputeFilter,...,GpuFilter
"""

from __future__ import annotations

from nova.scheduler import filters
from nova.scheduler import utils
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.scheduling import chooser

LOG = logging.getLogger(__name__)


class GpuFilter(filters.BaseHostFilter, filters.CandidateFilterMixin):
    """Drops the GPUs, and hosts, that the placement policy rules out.

    Nova skips the weighers if only one host is left, so the filter puts the
    best GPU of that host first. Requests without a GPU pass.
    """

    def __init__(self):
        super().__init__()
        self._chooser = chooser.shared()

    def filter_all(self, filter_obj_list, spec_obj):
        hosts = list(filter_obj_list)
        # A rebuild stays on its host and has no allocation candidates.
        if (not chooser.resource_classes(spec_obj)
                or utils.request_is_rebuild(spec_obj)):
            return hosts
        try:
            wish = chooser.wish_of(spec_obj)
        except exception.InvalidValue as error:
            LOG.error('No host passes: %s', error)
            return []
        strict = [chooser.policy_of(wish, host).is_strict for host in hosts]
        if not any(strict) and not any(map(chooser.multiplier, hosts)):
            return hosts
        request = self._chooser.request(spec_obj, wish, hosts)
        if request is None:
            # The bind refuses servers that an isolated GPU must not have.
            return [host for host, is_strict
                    in zip(hosts, strict, strict=True) if not is_strict]
        now = self._chooser.current(request)
        hosts = [
            host for host in hosts if self.filter_candidates(
                host, lambda candidate, host=host:
                self._chooser.admits(now, host, candidate))]
        if len(hosts) == 1 and chooser.multiplier(hosts[0]):
            self._choose(request, hosts[0])
        return hosts

    def _choose(self, request, host):
        with self._chooser.choosing(request) as now:
            self._chooser.keep_admitted(now, host)
            figures, = self._chooser.figures(now, [host])
            chooser.put_best_first(host.allocation_candidates, figures)
            self._chooser.promise(now, host)
