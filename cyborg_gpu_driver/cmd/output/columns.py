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

"""Column values with different formats for people and for programs."""

from __future__ import annotations

import datetime

from cliff import columns


class Names(columns.FormattableColumn):
    """A sequence of names."""

    def human_readable(self) -> str:
        return '\n'.join(self._value)

    def machine_readable(self) -> list[str]:
        return list(self._value)


class Counts(columns.FormattableColumn):
    """The count of each name; one name per line for people."""

    def human_readable(self) -> str:
        return '\n'.join(f'{count}x {name}'
                         for name, count in sorted(self._value.items()))

    def machine_readable(self) -> dict[str, int]:
        return dict(sorted(self._value.items()))


class Optional(columns.FormattableColumn):
    """A value that may be unknown."""

    def human_readable(self) -> str:
        return '-' if self._value is None else str(self._value)

    def machine_readable(self):
        return self._value


class Time(columns.FormattableColumn):
    """A moment with a time zone, or None; for people, two words in UTC."""

    def human_readable(self) -> str:
        return '-' if self._value is None else self._value.astimezone(
            datetime.timezone.utc).strftime('%Y-%m-%d %H:%M:%SZ')

    def machine_readable(self) -> str | None:
        return self._value and self._value.isoformat(timespec='seconds')


class Structure(columns.FormattableColumn):
    """Nested data: the number of items for people, all data for programs."""

    def human_readable(self) -> str:
        return str(len(self._value))

    def machine_readable(self):
        return self._value
