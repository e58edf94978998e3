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

"""A file of named layouts, whatever a layout is in it."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any
from typing import ClassVar

from cyborg_gpu_driver.partition import layout_yaml


@dataclasses.dataclass(frozen=True)
class LayoutDocument(abc.ABC):
    """Named layouts, in the file's order.

    An entry has a ``name`` and ``sections``; a section has ``to_dict()``.
    """

    ROOT: ClassVar[str]
    """The key that the layouts stand below."""

    entries: tuple
    source: str = 'layout'
    """The file that they are from, for complaints."""

    @classmethod
    @abc.abstractmethod
    def read_entry(cls, source: str, name: str, items: list) -> Any:
        """One entry from what YAML made of it.

        :raises LayoutError: naming file, entry and item.
        """

    @classmethod
    def parse(cls, text: str, source: str):
        """Read a file's text.

        :param source: the file's name, for complaints.
        :raises LayoutError: naming file and entry.
        """
        content = layout_yaml.load(text, layout_yaml.Where(source), cls.ROOT)
        return cls(tuple(cls.read_entry(source, name, items)
                         for name, items in content.items()), source)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    def entry(self, name: str | None = None) -> Any:
        """The layout of that name; without one, the only one there is.

        :raises LayoutError: listing those that there are.
        """
        return layout_yaml.choose(self.entries, name,
                                  layout_yaml.Where(self.source, self.ROOT))

    def to_dict(self) -> dict[str, Any]:
        """The whole file as plain values."""
        return {'version': layout_yaml.VERSION, self.ROOT: self._entries()}

    def dump(self) -> str:
        """The file's text; :meth:`parse` reads the same from it."""
        return layout_yaml.dump(self.ROOT, self._entries())

    def _entries(self):
        return {entry.name: [section.to_dict() for section in
                             entry.sections] for entry in self.entries}
