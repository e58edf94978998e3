# SPDX-License-Identifier: Apache-2.0

"""Plan the changes that give a cloud what a file asks for. Pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import resources

Present = Mapping[resources.Key, resources.Existing]

_FOREIGN = ('it was not created by this command and is different; --adopt '
            'changes it')
_ORDER = tuple(resources.Kind)
_NAMED = 3
"""The number of users that a text names."""


class Action(enum.Enum):
    """What happens to an item."""

    CREATE = 'create'
    UPDATE = 'update'
    REPLACE = 'replace'
    """Delete and create again, because the item cannot be changed."""
    DELETE = 'delete'
    KEEP = 'keep'
    """Leave the item unchanged, because something uses it."""
    REFUSE = 'refuse'
    """The file asks for something impossible. Then no change is made at all.
    """


@dataclasses.dataclass(frozen=True)
class Change:
    """An item, and what happens to it.

    :ivar text: what changes, or why it cannot change, for display.
    :ivar wanted: None if the item is to be deleted.
    :ivar existing: None if the item does not exist yet.
    """

    action: Action
    text: str
    wanted: resources.Item | None
    existing: resources.Existing | None = None

    @property
    def item(self) -> resources.Item:
        """The wanted item, or the existing one that is to be deleted."""
        if self.wanted is not None:
            return self.wanted
        return self.there.item

    @property
    def there(self) -> resources.Existing:
        """The existing item, for a change of an item that exists."""
        if self.existing is None:
            raise ValueError(f'{self.action.value}: it does not exist yet')
        return self.existing

    @property
    def acts(self) -> bool:
        """Whether the change does anything."""
        return self.action not in (Action.KEEP, Action.REFUSE)


def make(wanted: Iterable[resources.Item], present: Present,
         adopt: bool = False, prune: bool = False) -> tuple[Change, ...]:
    """Return the changes, in the order in which they can be carried out.

    An item that is in use is never replaced or deleted. An item that this
    library did not create is not changed, unless it is adopted.

    :param adopt: whether to take over items that this library did not create.
    :param prune: whether to delete items that this library created and that
        are no longer wanted.
    """
    items = sorted(wanted, key=lambda item: _ORDER.index(item.kind))
    keys = {item.key for item in items}
    changes = [change for item in items
               for change in _towards(item, keys, present, adopt)]
    if prune:
        changes += _pruned(items, keys, present)
    return tuple(changes)


def left_over(wanted: Iterable[resources.Item], present: Present
              ) -> tuple[resources.Item, ...]:
    """Return items that this library created and that are no longer wanted."""
    keys = {item.key for item in wanted}
    return tuple(existing.item for existing in present.values()
                 if existing.ours and existing.item.key not in keys)


def differences(wanted: resources.Item, there: resources.Item
                ) -> dict[str, str]:
    """Return the differences by field, for display."""
    return {
        name: f'{_shown(name, getattr(there, name))} -> {_shown(name, after)}'
        for name, after in vars(wanted).items()
        if getattr(there, name) != after}


def unoffered(wanted: Iterable[resources.Item],
              found: Iterable[facts.Node]) -> tuple[str, ...]:
    """Return a sentence for each device profile group that no GPU offers."""
    found = [one for one in found if one.resource_class is not None]
    offered = {one.resource_class for one in found if one.resource_class}
    texts = []
    for item in wanted:
        if not isinstance(item, resources.DeviceProfile):
            continue
        for group in item.groups:
            missing = _missing(group, found, offered)
            text = f'device profile {item.name}: {missing}'
            if missing and text not in texts:
                texts.append(text)
    return tuple(texts)


def _missing(group: resources.Group, found: Collection[facts.Node],
             offered: Collection[str]) -> str:
    """Why no GPU of the cloud can meet a group; '' if one can.

    Capacity that is in use now counts, because it may be free later.
    """
    traits = resources.traits(group)
    for resource_class, count in resources.classes(group).items():
        if resource_class not in offered:
            return (f'no GPU offers {resource_class}; there are '
                    + (', '.join(sorted(offered)) or 'none'))
        if not any(one.resource_class == resource_class
                   and one.total >= count and one.suits(*traits)
                   for one in found):
            return (f'no GPU that offers {resource_class} meets the request: '
                    + resources.describe(group))
    return ''


def _towards(item: resources.Item, keys: Collection[resources.Key],
             present: Present, adopt: bool) -> Iterator[Change]:
    existing = present.get(item.key)
    for need in item.needs:
        if need not in keys and need not in present:
            yield Change(Action.REFUSE, f'{need[0].value} {need[1]} exists '
                         'neither in the file nor in the cloud',
                         item, existing)
            return
    if existing is None:
        yield Change(Action.CREATE, _created(item), item)
        return
    found = differences(item, existing.item)
    text = '; '.join(f'{name}: {value}' for name, value in found.items())
    if not existing.ours:
        if not adopt:
            if found:
                yield Change(Action.REFUSE, f'{_FOREIGN} ({text})', item,
                             existing)
            return
        found.setdefault('description', 'adopted')
        text = text or 'adopted'
    if found:
        yield (_held(item, existing, present)
               or _change(item, existing, found, text))


def _held(item: resources.Item, existing: resources.Existing,
          present: Present) -> Change | None:
    """Refuse to change a registered limit while projects have limits.

    Keystone 30 refuses it, too.
    """
    theirs = [other.item.name for other in present.values()
              if item.key in other.item.needs]
    if item.kind is not resources.Kind.REGISTERED or not theirs:
        return None
    return Change(
        Action.REFUSE, 'Keystone changes it only if no project has a limit: '
        f'remove {_some(theirs)} from the file, run with --prune, and add '
        'them again', item, existing)


def _change(item: resources.Item, existing: resources.Existing,
            found: Mapping[str, str], text: str) -> Change:
    if not item.fixed & found.keys():
        return Change(Action.UPDATE, text, item, existing)
    if not existing.users:
        return Change(Action.REPLACE, text, item, existing)
    used = _used(existing.users)
    if text == 'adopted':
        return Change(Action.KEEP, f'not marked: {used}', item, existing)
    return Change(Action.REFUSE, f'{used}, so it cannot be recreated, and it '
                  f'cannot be changed in place ({text})', item, existing)


def _pruned(items: Iterable[resources.Item], keys: Collection[resources.Key],
            present: Present) -> Iterator[Change]:
    """Deletions; items that need another item come before that item."""
    staying = [*items, *(
        existing.item for existing in present.values()
        if not existing.ours and existing.item.key not in keys)]
    ours = [existing for existing in present.values()
            if existing.ours and existing.item.key not in keys]
    ours.sort(key=lambda one: _ORDER.index(one.item.kind), reverse=True)
    for existing in ours:
        needing = [f'{item.kind.value} {item.name}' for item in staying
                   if existing.item.key in item.needs]
        if existing.users or needing:
            staying.append(existing.item)
            text = (_used(existing.users) if existing.users
                    else 'needed by ' + _some(needing))
            yield Change(Action.KEEP, text, None, existing)
        else:
            yield Change(Action.DELETE, 'not in the file', None, existing)


def _used(users: Sequence[str]) -> str:
    return 'in use by ' + _some(users)


def _some(names: Sequence[str]) -> str:
    """List the first names, and the number of the others."""
    more = len(names) - _NAMED
    return ', '.join(names[:_NAMED]) + (f' and {more} more' if more > 0
                                        else '')


def _created(item: resources.Item) -> str:
    """Describe a new item, for display."""
    if isinstance(item, resources.DeviceProfile):
        return _shown('groups', item.groups)
    if isinstance(item, resources.DeployTemplate):
        return _shown('steps', item.steps)
    if isinstance(item, resources.Flavor):
        return (f'{item.vcpus} vCPU, {item.ram} MiB, {item.disk} GiB, '
                + (_shown('extra_specs', item.extra_specs)
                   if item.profile is None
                   else f'device profile {item.profile}'))
    if isinstance(item, resources.RegisteredLimit):
        return f'default: {item.default}'
    assert isinstance(item, resources.Limit)  # Nodes are never created.
    return f'value: {item.value}'


def _shown(name: str, value: Any) -> str:
    if name == 'groups':
        return ' + '.join(resources.describe(group) for group in value)
    if name == 'steps':
        return resources.describe_steps(value)
    if name == 'extra_specs':
        return ' '.join(f'{key}={text}' for key, text in value) or 'none'
    if isinstance(value, frozenset):
        return ', '.join(sorted(value)) or 'none'
    return repr(value) if name == 'description' else str(value)
