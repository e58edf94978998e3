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


"""Whether a user may open a file, decided from the result of ``stat``."""

from __future__ import annotations

import dataclasses
import enum


class Right(enum.IntFlag):
    """The bits of one octal digit of a file's mode."""

    EXECUTE = 1
    WRITE = 2
    READ = 4


@dataclasses.dataclass(frozen=True)
class User:
    """The user and the groups that a process runs with."""

    uid: int
    gids: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Node:
    """Owner and permissions of a file."""

    uid: int
    gid: int
    mode: int
    """``st_mode``; access control lists are ignored."""

    def allows(self, user: User, right: Right) -> bool:
        """Whether a user has a right.

        As in the kernel, the first match of owner, group and others decides.
        """
        if user.uid == 0:
            return True
        shift = (6 if user.uid == self.uid
                 else 3 if self.gid in user.gids else 0)
        return right & (self.mode >> shift) == right
