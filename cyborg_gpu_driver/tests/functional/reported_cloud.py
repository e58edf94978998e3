# SPDX-License-Identifier: Apache-2.0


"""Files of clouds that have reported, which tests copy.

The first two reports of a host take most of the time of a short test:
Cyborg and Placement write each provider, with about ten requests for each.
Tests of the same host and configuration copy the files of one such cloud
instead.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable

from cyborg_gpu_driver.tests.functional import kept

_DATABASES = ('cyborg.sqlite', 'placement.sqlite')
_SECONDS = 3600
"""How long the files are used: some of what they say has a time."""


class ReportedCloud:
    """A cloud's databases and its agent's state, to copy."""

    def __init__(self, path: str):
        self._path = path

    def copy(self, directory: str) -> tuple[str, str]:
        """Copy the databases as ``demo.database.Templates.copy()`` does."""
        cyborg, placement = (
            shutil.copyfile(os.path.join(self._path, name),
                            os.path.join(directory, name))
            for name in _DATABASES)
        return cyborg, placement

    def copy_state(self, directory: str) -> None:
        """Copy the state into an existing directory."""
        shutil.copytree(_state(self._path), directory, dirs_exist_ok=True)


def find(machine: str, overrides: dict,
         make: Callable[[str], None]) -> ReportedCloud:
    """Return the files for a machine and configuration, made at first use.

    :param machine: name or file of the simulated machine.
    :param overrides: more options of cyborg.conf.
    :param make: saves the files in the directory that is its argument.
    """
    if os.path.isfile(machine):
        with open(machine, encoding='utf-8') as stream:
            machine = stream.read()
    return ReportedCloud(kept.find('reported', json.dumps(
        [kept.services(), kept.CODE, machine, overrides], sort_keys=True,
        default=str), make, _SECONDS))


def save(directory: str, state_path: str, target: str) -> None:
    """Save the files of a cloud, whose services may still run.

    :param directory: directory of the cloud.
    :param state_path: directory with the state of the agent and of the
        simulated hardware.
    :param target: an empty directory.
    """
    for name in _DATABASES:
        _copy_database(os.path.join(directory, name),
                       os.path.join(target, name))
    shutil.copytree(state_path, _state(target))


def _state(path):
    return os.path.join(path, 'state')


def _copy_database(source, target):
    """Copy a database that may be in use."""
    read, written = sqlite3.connect(source), sqlite3.connect(target)
    try:
        read.backup(written)
    finally:
        read.close()
        written.close()
