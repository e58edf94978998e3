# SPDX-License-Identifier: Apache-2.0

"""Quotas of projects for GPU resource classes, and their usage.

A quota is a unified limit of Keystone for the resource ``class:NAME``. A
registered limit applies to every project that has no limit of its own. Nova
enforces quotas with ``[quota] driver = nova.quota.UnifiedLimitsDriver``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import os_resource_classes as orc

from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.report.content import names

_PREFIX = 'class:'
_CUSTOM = names.custom(names.VENDOR) + '_'


@dataclasses.dataclass(frozen=True)
class Quota:
    """The quota of one project for a resource class.

    :ivar project: UUID; None for the default of all projects.
    :ivar limit: None if there is no limit.
    :ivar own: whether the limit is the project's own, not the default.
    :ivar used: what the project's servers use; None for the default.
    """

    project: str | None
    resource_class: str
    limit: int | None
    own: bool
    used: int | None

    @property
    def free(self) -> int | None:
        """How much more the project can use; None if there is no limit."""
        if self.limit is None or self.used is None:
            return None
        return max(0, self.limit - self.used)


def is_gpu(resource_class: str) -> bool:
    """Whether a resource class is one of this driver's GPUs."""
    return resource_class == orc.PGPU or resource_class.startswith(_CUSTOM)


def of_project(project: str | None, limits: Iterable[resources.Existing],
               usages: Mapping[str, int]) -> Iterator[Quota]:
    """Yield the quotas of a project, sorted by resource class.

    :param project: None for the defaults of all projects.
    """
    items = [existing.item for existing in limits]
    registered = {item.name.removeprefix(_PREFIX): item.default
                  for item in items
                  if isinstance(item, resources.RegisteredLimit)}
    own = {item.resource.removeprefix(_PREFIX): item.value for item in items
           if isinstance(item, resources.Limit) and item.project == project}
    for name in sorted(own.keys() | usages.keys() | registered.keys()):
        if is_gpu(name):
            # Keystone's -1 means that there is no limit.
            limit = own.get(name, registered.get(name, -1))
            yield Quota(project, name, None if limit < 0 else limit,
                        name in own, usages.get(name, 0) if project else None)
