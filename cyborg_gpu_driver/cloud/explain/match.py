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
"""Whether a compute node can meet all groups of a request. Pure.

The rules are those of Placement
(``placement/objects/allocation_candidate.py``): each numbered group uses one
provider, and the group without a number can use any providers of the tree.
The amounts that several groups use of one provider add up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence

from cyborg_gpu_driver.cloud.explain import facts
from cyborg_gpu_driver.cloud.explain import request

Part = tuple[str, str, int]
"""UUID of a provider, resource class, amount."""
Option = tuple[Part, ...]
"""One way to meet one group."""


def root_accepts(wanted: request.Request, tree: facts.Tree) -> bool:
    """Whether the root provider has the traits that the request requires."""
    return (wanted.root_required <= tree.root.traits
            and not wanted.root_forbidden & tree.root.traits)


def accepts(group: request.Group, node: facts.Node) -> bool:
    """Whether a single provider meets a group."""
    return (bool(group.resources) and group.required <= node.traits
            and not group.forbidden & node.traits
            and all(name in node.inventories
                    and node.inventories[name].fits(amount)
                    for name, amount in group.resources.items()))


def options(group: request.Group, tree: facts.Tree) -> list[Option]:
    """Return all ways to meet a group on a compute node."""
    if group.suffix:
        return [tuple((node.uuid, name, amount) for name, amount
                      in group.resources.items())
                for node in tree.nodes if accepts(group, node)]
    traits = {node.uuid: node.traits for node in tree.nodes}
    choices = [
        [(node.uuid, name, amount) for node in tree.nodes
         if name in node.inventories and node.inventories[name].fits(amount)
         and not group.forbidden & node.traits]
        for name, amount in group.resources.items()]
    return [option for option in itertools.product(*choices)
            if group.required <= frozenset().union(
                *(traits[uuid] for uuid, _, _ in option))]


def assignment(wanted: request.Request, tree: facts.Tree,
               also: Callable[[Sequence[Option]], bool] = lambda taken: True
               ) -> tuple[Option, ...] | None:
    """Return one way to meet all groups at once; None if there is none.

    :param also: a further condition. It gets the options that are chosen so
        far and returns whether they are acceptable.
    """
    groups = wanted.groups
    found = [options(group, tree) for group in groups]
    if not all(found):
        return None
    # Groups with the fewest options first. Groups with the same options are
    # adjacent, because trying them in one order is enough.
    order = sorted(range(len(groups)), key=lambda index: (
        len(found[index]), str(sorted(found[index]))))
    limits = {(node.uuid, name): min(inventory.free, inventory.max_unit)
              for node in tree.nodes
              for name, inventory in node.inventories.items()}
    if _too_many(found, limits):
        return None
    search = _Search([found[index] for index in order], limits,
                     {position for position, index in enumerate(order)
                      if groups[index].suffix}
                     if wanted.policy == 'isolate' else set(), also)
    taken = search.run()
    if taken is None:
        return None
    return tuple(taken[order.index(index)] for index in range(len(groups)))


def _too_many(found, limits):
    """Whether groups that fit only on the same providers request more than
    these have in total. This finds most impossible requests without a search.
    """
    held = [{part[:2] for option in choices for part in option}
            for choices in found]
    wanted = [{part[1]: part[2] for part in choices[0]} for choices in found]
    return any(
        sum(amounts[name] for other, amounts in zip(held, wanted, strict=True)
            if other <= places and name in amounts)
        > sum(limits[place] for place in places if place[1] == name)
        for places in held for name in {place[1] for place in places})


class _Search:
    """Depth-first search through the options of the groups, in their order.

    :param lonely: positions of the groups that must all use different
        providers.
    """

    def __init__(self, found, limits, lonely, also):
        self._found = found
        self._limits = limits
        self._lonely = lonely
        self._also = also
        self._used: dict[tuple[str, str], int] = {}
        self._taken: list[Option] = []

    def run(self):
        return list(self._taken) if self._next(0) else None

    def _next(self, first):
        position = len(self._taken)
        if position == len(self._found):
            return True
        for index in range(first, len(self._found[position])):
            option = self._found[position][index]
            if not self._take(option):
                continue
            same = (position + 1 < len(self._found)
                    and self._found[position + 1] == self._found[position])
            if self._also(self._taken) and self._next(index if same else 0):
                return True
            self._give_back(option)
        return False

    def _take(self, option):
        position = len(self._taken)
        if position in self._lonely and {uuid for uuid, _, _ in option} & {
                uuid for other in self._lonely if other < position
                for uuid, _, _ in self._taken[other]}:
            return False
        for uuid, name, amount in option:
            if (self._used.get((uuid, name), 0) + amount
                    > self._limits[uuid, name]):
                return False
        for uuid, name, amount in option:
            self._used[uuid, name] = self._used.get((uuid, name), 0) + amount
        self._taken.append(option)
        return True

    def _give_back(self, option):
        self._taken.pop()
        for uuid, name, amount in option:
            self._used[uuid, name] -= amount
