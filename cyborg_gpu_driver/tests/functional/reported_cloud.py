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


"""Files of clouds that have reported, which tests copy.

The first two reports of a host take most of the time of a short test:
Cyborg and Placement write each provider, with about ten requests for each.
Tests of the same host and configuration copy the files of one such cloud
instead.
"""

from __future__ import annotations

import atexit
import collections
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable

_DATABASES = ('cyborg.sqlite', 'placement.sqlite')
_KEPT = 4
"""How many clouds' files are kept: tests of one class run together."""
# Read at import, because a test's temporary directory is removed with it.
_TEMPORARY = tempfile.gettempdir()
_clouds: collections.OrderedDict[str, ReportedCloud]
_clouds = collections.OrderedDict()


class ReportedCloud:
    """Copies of a cloud's databases and of its agent's state.

    :param directory: directory of the cloud, whose services may still run.
    :param state_path: directory with the state of the agent and of the
        simulated hardware.
    """

    def __init__(self, directory: str, state_path: str):
        self._files = tempfile.mkdtemp(prefix='cyborg-gpu-reported-',
                                       dir=_TEMPORARY)
        for name in _DATABASES:
            _copy_database(os.path.join(directory, name),
                           os.path.join(self._files, name))
        shutil.copytree(state_path, os.path.join(self._files, 'state'))

    def copy(self, directory: str) -> tuple[str, str]:
        """Copy the databases as ``demo.database.Templates.copy()`` does."""
        cyborg, placement = (
            shutil.copyfile(os.path.join(self._files, name),
                            os.path.join(directory, name))
            for name in _DATABASES)
        return cyborg, placement

    def copy_state(self, directory: str) -> None:
        """Copy the state into an existing directory."""
        shutil.copytree(os.path.join(self._files, 'state'), directory,
                        dirs_exist_ok=True)

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._files, ignore_errors=True)


def find(machine: str, overrides: dict,
         make: Callable[[str], ReportedCloud]) -> ReportedCloud:
    """Return the files for a machine and configuration, made at first use.

    :param machine: name or file of the simulated machine.
    :param overrides: more options of cyborg.conf.
    :param make: makes the files; its argument is an empty directory for
        the agent's state.
    """
    key = json.dumps([machine, overrides], sort_keys=True, default=str)
    if key in _clouds:
        _clouds.move_to_end(key)
        return _clouds[key]
    with tempfile.TemporaryDirectory(dir=_TEMPORARY) as directory:
        _clouds[key] = make(directory)
    while len(_clouds) > _KEPT:
        _clouds.popitem(last=False)[1].remove()
    return _clouds[key]


def _copy_database(source, target):
    """Copy a database that may be in use."""
    read, written = sqlite3.connect(source), sqlite3.connect(target)
    try:
        read.backup(written)
    finally:
        read.close()
        written.close()


@atexit.register
def _remove_all():
    for cloud in _clouds.values():
        cloud.remove()
