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

"""Files, directories and links of which a simulated sysfs is made."""

from __future__ import annotations

import errno
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

_MOST_LINKS = 16


class Node:
    """Something in the tree. ``present`` says whether it is there now."""

    def __init__(self, present: Callable[[], bool] | None = None):
        self._present = present

    def there(self) -> bool:
        return self._present is None or self._present()


class File(Node):
    """A file.

    :param read: gives the text, without the last newline, or bytes as they
        are; None for a file that can only be written. A plain text is a
        constant.
    :param write: takes the text written; None for one that can only be
        read. Both raise OSError as the kernel does.
    """

    def __init__(self,
                 read: Callable[[], str | bytes] | str | None = None,
                 write: Callable[[str], None] | None = None,
                 present: Callable[[], bool] | None = None):
        super().__init__(present)
        self.read = (lambda: read) if isinstance(read, str) else read
        self.write = write


class Link(Node):
    """A symbolic link to ``target``, from the root of the tree.

    :param target: path without leading slash, such as
        ``bus/pci/drivers/nvidia``; may be computed.
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
    """A directory whose entries come and go.

    :param names: the names that there are now.
    :param make: the node of such a name.
    :param entries: nodes that are always there.
    :param has: whether there is such a name now, where that can be told
        faster than by ``names``.
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


def find(root: Directory, parts: list[str], follow: bool = True
         ) -> tuple[list[str], Node]:
    """Walk a path; its canonical parts and the node there.

    :param follow: whether a link at the very end is followed.
    :raises FileNotFoundError, NotADirectoryError: as the kernel does.
    """
    links = 0
    todo = [part for part in reversed(parts) if part and part != '.']
    done = []
    stack = [root]
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
            todo.extend(reversed(node.target().split('/')))
            done.clear()
            del stack[1:]
            continue
        done.append(name)
        stack.append(node)
    return done, stack[-1]
