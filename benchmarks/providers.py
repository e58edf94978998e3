# SPDX-License-Identifier: Apache-2.0

"""What the providers of a host cost its nova-compute in each boot.

The released Placement and the released Nova's report client run in this
process. In each claim, deletion and periodic update, the resource tracker
calls the client as this program does (ResourceTracker._update_to_placement in
nova/compute/resource_tracker.py): it reads the provider tree from the cache,
and asks Placement for the allocations of each provider in it. Once in 300
seconds it reads the whole tree again. Cyborg's own driver has one provider
for each GPU, this one a provider for each profile of a GPU. Each host has
eight GPUs.

usage: python benchmarks/providers.py [-f table|json] [--repeat N]

Exits 1 if a claim needs more than one request for each provider.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / 'tools'))

import counting
import figures
from keystoneauth1 import adapter
from keystoneauth1 import session
from keystoneauth1 import token_endpoint
from nova import context
from nova.scheduler.client import report

from demo_lib import client
from demo_lib import database
from demo_lib import placement_service

GPUS = 8
PROFILES = (1, 7, 14)
"""How many profiles each GPU offers. The first is the in-tree driver's."""


class Host:
    """A compute node with providers below it, as its nova-compute sees it.

    :param url: of Placement.
    :param profiles: how many each GPU offers.
    """

    def __init__(self, url: str, profiles: int):
        placement = client.Placement(url)
        self.name = f'compute{profiles}'
        self.root = placement.post('/resource_providers', {
            'name': self.name})['uuid']
        for number in range(GPUS * profiles):
            placement.post('/resource_providers', {
                'name': f'{self.name}_{number}',
                'parent_provider_uuid': self.root})
        self._client = report.SchedulerReportClient(adapter.Adapter(
            session.Session(token_endpoint.Token(url, 'admin')),
            service_type='placement'))
        self._context = context.RequestContext(is_admin=True)

    def claim(self) -> None:
        """Do what the resource tracker does in each claim."""
        self._client.get_provider_subtree_and_ensure_root(
            self._context, self.root, name=self.name)
        self._client.get_allocations_for_provider_tree(
            self._context, self.name)


def measure(repeat):
    """Yield the figures for each number of profiles."""
    with tempfile.TemporaryDirectory() as directory:
        templates = database.Templates(directory)
        templates.make()
        service = placement_service.PlacementService(
            directory, templates.copy(directory)[1])
        try:
            yield from show([(count, *_measure(Host(service.url, count),
                                                repeat))
                              for count in PROFILES])
        finally:
            service.stop()


def _measure(host, repeat):
    """Return the requests of the first claim, and those and the milliseconds
    of CPU of the cheapest later one.
    """
    with counting.requests_sent() as first:
        host.claim()
    seconds = []
    for _ in range(repeat):
        with counting.requests_sent() as later:
            begun = time.process_time()
            host.claim()
            seconds.append(time.process_time() - begun)
    return len(first), len(later), 1e3 * min(seconds)


def show(found):
    """Yield the figures.

    :param found: profiles of a GPU, and what :func:`_measure` returns.
    """
    (_, *theirs), *_ = found
    for count, *ours in found:
        providers = GPUS * count
        where = f'{providers} providers'
        names = ('requests to read the tree', 'requests of a claim',
                 'CPU of a claim')
        limits = (None, providers + 1, None)
        for name, value, baseline, limit in zip(names, ours, theirs, limits,
                                                strict=True):
            yield figures.Figure(
                f'{where}: {name}', value,
                'ms CPU' if name == names[-1] else '', baseline=baseline,
                limit=limit)


def main(argv=None):
    options = figures.parser(
        'Measure what providers cost nova-compute.', 3).parse_args(argv)
    with figures.without_logs():
        return figures.show(measure(options.repeat), options.format)


if __name__ == '__main__':
    sys.exit(main())
