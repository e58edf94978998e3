# SPDX-License-Identifier: Apache-2.0


"""Patches for other projects, applied to a copy of the installed package."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

PATCHES = (pathlib.Path(__file__).resolve().parents[2]
           / 'contrib' / 'upstream')
_CHANGED = re.compile(r'^\+\+\+ b/(.+)$', re.MULTILINE)
_PATIENCE = 300


def patches(project: str) -> list[pathlib.Path]:
    """Return the patches for a project, in their order."""
    return sorted((PATCHES / project).glob('*.patch'))


def copy(package: str, directory: str, series: list[pathlib.Path]) -> None:
    """Copy an installed package, and apply patches to the copy."""
    (source,) = importlib.util.find_spec(package).submodule_search_locations
    copy_tree(source, pathlib.Path(directory, package), series)


def copy_tree(source: str | pathlib.Path, target: pathlib.Path,
              series: list[pathlib.Path]) -> None:
    """Copy a directory, and apply patches to what is beside the copy, too.

    Files that no patch changes are links, because there are thousands of
    them.
    """
    directory = target.parent
    shutil.copytree(source, target, copy_function=os.symlink)
    changed = {name for patch in series
               for name in _CHANGED.findall(patch.read_text())}
    for name in changed:
        path = directory / name
        if path.is_symlink():
            target = path.resolve()
            path.unlink()
            shutil.copy(target, path)
    for patch in series:
        # If git found a repository above, it would skip files outside of it.
        run(str(directory), 'git', 'apply', str(patch),
            GIT_CEILING_DIRECTORIES=str(directory.parent))


def run_tests(directory: str, prepare: str, *modules: str) -> str:
    """Run test modules of a copy and return what the run prints.

    :param prepare: Python that runs first, such as an import.
    :raises AssertionError: if a test fails.
    """
    return run(directory, sys.executable, '-W', 'ignore', '-c',
               f'{prepare}\nimport sys\nfrom testtools import run\n'
               f'run.main(["run", *{modules!r}], sys.stdout)')


def run(directory: str, *command: str, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith('OS_')}
    done = subprocess.run(
        command, cwd=directory, check=False, text=True, timeout=_PATIENCE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={
            **environment, 'PYTHONPATH': directory,
            'PYTHONDONTWRITEBYTECODE': '1', **more})
    if done.returncode:
        raise AssertionError(f'{command[0]} ended with {done.returncode}:\n'
                             + done.stdout[-6000:])
    return done.stdout
