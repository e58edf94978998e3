# SPDX-License-Identifier: Apache-2.0


"""GPUs and Placement's answers about them as plain values."""

from __future__ import annotations

from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.tests.unit.partition import boards


def gpu(host, address, board=boards.H100_80, offered=None, taken=(),
        claimed=()):
    """A GPU with the figures that the agent would report.

    :param board: profiles of the GPU.
    :param offered: names of the profiles that the GPU offers; None for all
        without media extensions.
    :param taken: profile names and starts of the GPU instances.
    :param claimed: names of profiles that are allocated and not bound yet.
    """
    grid = geometry.Geometry(board)
    known = {profile.name: profile for profile in board}
    occupancy = geometry.Occupancy(tuple(
        (known[name].profile_id, next(
            place for place in known[name].placements
            if place.start == start)) for name, start in taken))
    offered = offered or [name for name in known
                          if '+' not in name and '-' not in name]
    return published.Gpu(host, address, tuple(sorted((
        published.Offer(
            f'{host}/{address}/{name}', name, name,
            used=occupancy.counts[known[name].profile_id]
            + list(claimed).count(name),
            free=grid.creatable(occupancy, known[name])
            - list(claimed).count(name))
        for name in offered), key=lambda offer: offer.profile)))


def figures(item):
    """The profiles, used and free amounts of a GPU, as the grid needs them."""
    return (tuple(offer.profile for offer in item.offers),
            tuple(offer.used for offer in item.offers),
            tuple(offer.free for offer in item.offers))


def asked(item, *profiles):
    """The allocations of a candidate with one of each profile on a GPU."""
    allocations = {item.host: {'resources': {'VCPU': 4}}}
    for profile in profiles:
        offer, = (offer for offer in item.offers
                  if offer.profile == profile)
        resources = allocations.setdefault(
            offer.provider, {'resources': {}})['resources']
        resources[offer.resource_class] = resources.get(
            offer.resource_class, 0) + 1
    return allocations
