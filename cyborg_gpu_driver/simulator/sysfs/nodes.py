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

"""The files, directories and links of a simulated sysfs."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

_MOST_LINKS = 16


class Node:
    """A node of the tree. ``present`` says whether the node exists now."""

    def __init__(self, present: Callable[[], bool] | None = None):
        self._present = present

    def there(self) -> bool:
        return self._present is None or self._present()


class File(Node):
    """A file.

    :param read: returns the text without the last newline, or all bytes;
        None for a file that can only be written. A string is a constant
        content.
    :param write: called with the written text; None for a file that can only
        be read. Both raise OSError as the kernel does.
    """

    def __init__(self,
                 read: Callable[[], str | bytes] | str | None = None,
                 write: Callable[[str], None] | None = None,
                 present: Callable[[], bool] | None = None):
        super().__init__(present)
        self.read = (lambda: read) if isinstance(read, str) else read
        self.write = write


class Link(Node):
    """A symbolic link to ``target``, which is relative to the root.

    :param target: path without leading slash, such as
        ``bus/pci/drivers/nvidia``, or a function that returns it.
    """

    def __init__(self, target: Callable[[], str] | str,
                 present: Callable[[], bool] | None = None):
        super().__init__(present)
        self.target = (lambda: target) if isinstance(target, str) else target


class Directory(Node):
    """A directory with these entries."""

    def __init__(self, entries: Mapping[str, Node],
                 present: Callable[[], bool] | None = None):
        super().__init__(present)
        self._entries = dict(entries)

    def names(self) -> Iterable[str]:
        return [name for name, node in self._entries.items()
                if node.there()]

    def child(self, name: str) -> Node | None:
        node = self._entries.get(name)
        return node if node is not None and node.there() else None


class Listing(Directory):
    """A directory whose entries change.

    :param names: returns the current names.
    :param make: creates the node of a name.
    :param entries: nodes that always exist.
    :param has: whether a name exists now, if there is a faster way than
        ``names``.
    """

    def __init__(self, names: Callable[[], Iterable[str]],
                 make: Callable[[str], Node],
                 entries: Mapping[str, Node] | None = None,
                 present: Callable[[], bool] | None = None,
                 has: Callable[[str], bool] | None = None):
        super().__init__(entries or {}, present)
        self._names = names
        self._make = make
        self._has = has or (lambda name: name in names())

    def names(self) -> Iterable[str]:
        return [*super().names(), *self._names()]

    def child(self, name: str) -> Node | None:
        node = super().child(name)
        if node is None and self._has(name):
            node = self._make(name)
        return node


@functools.lru_cache(maxsize=1 << 14)
def _reversed(path: str) -> tuple[str, ...]:
    """The parts of a path, the last part first."""
    return tuple(part for part in reversed(path.split('/'))
                 if part and part != '.')


def find(root: Directory, path: str, follow: bool = True
         ) -> tuple[list[str], Node]:
    """Walk a path; return its canonical parts and its node.

    :param path: path from the root, with or without a leading slash.
    :param follow: whether to follow a link at the end of the path.
    :raises FileNotFoundError, NotADirectoryError: as the kernel does.
    """
    links = 0
    todo = [*_reversed(path)]
    done: list[str] = []
    stack: list[Node] = [root]
    while todo:
        name = todo.pop()
        if name == '..':
            if done:
                done.pop()
                stack.pop()
            continue
        here = stack[-1]
        if not isinstance(here, Directory):
            raise NotADirectoryError(errno.ENOTDIR, 'Not a directory')
        node = here.child(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, 'No such file')
        if isinstance(node, Link) and (todo or follow):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, 'Too many links')
            todo.extend(_reversed(node.target()))
            done.clear()
            del stack[1:]
            continue
        done.append(name)
        stack.append(node)
    return done, stack[-1]
