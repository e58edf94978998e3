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


"""Whether a user may open a file, from what ``stat`` says of it."""

from __future__ import annotations

import dataclasses
import enum


class Right(enum.IntFlag):
    """One digit of a file's mode."""

    EXECUTE = 1
    WRITE = 2
    READ = 4


@dataclasses.dataclass(frozen=True)
class User:
    """As which user, and in which groups, a process runs."""

    uid: int
    gids: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Node:
    """Owner and permissions of a file."""

    uid: int
    gid: int
    mode: int
    """``st_mode``; access control lists are not looked at."""

    def allows(self, user: User, right: Right) -> bool:
        """As the kernel decides: the first of owner, group and others."""
        if user.uid == 0:
            return True
        shift = (6 if user.uid == self.uid
                 else 3 if self.gid in user.gids else 0)
        return right & (self.mode >> shift) == right
