# SPDX-License-Identifier: Apache-2.0

"""Configuration files of the services."""

from __future__ import annotations

import configparser
import pathlib
from collections.abc import Mapping

from minicloud_lib import error

Sections = Mapping[str, Mapping[str, object]]
"""``{section: {option: value}}``; a list is written with commas."""


def write(path: pathlib.Path, sections: Sections) -> pathlib.Path:
    """Write a file that only its owner can read, as it contains passwords."""
    lines = []
    for section, options in sections.items():
        lines.append(f'[{section}]')
        lines += [f'{name} = {_text(value)}'
                  for name, value in options.items()]
        lines.append('')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text('\n'.join(lines), encoding='utf-8')
    return path


def merge(*several: Sections) -> dict[str, dict[str, object]]:
    """Merge sections. For an option in several of them, the last wins."""
    merged: dict[str, dict[str, object]] = {}
    for sections in several:
        for section, options in sections.items():
            merged.setdefault(section, {}).update(options)
    return merged


def read(path: pathlib.Path) -> dict[str, dict[str, object]]:
    """Return the sections of a file.

    :raises MinicloudError: if it cannot be read as configuration.
    """
    parser = configparser.RawConfigParser(default_section='')
    parser.optionxform = str
    try:
        with path.open(encoding='utf-8') as stream:
            parser.read_file(stream)
    except (OSError, ValueError, configparser.Error) as problem:
        raise error.MinicloudError(
            f'{path} cannot be used as configuration: {problem}'
            ) from problem
    return {name: dict(parser[name]) for name in parser.sections()}


def _text(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ','.join(str(item) for item in value)
    return str(value)
