# SPDX-License-Identifier: Apache-2.0


"""Configuration files written from nested dictionaries."""

from __future__ import annotations

from collections.abc import Mapping

Sections = Mapping[str, Mapping[str, object]]


def write(path: str, *layers: Sections) -> str:
    """Write one oslo.config file; a later layer overrides an earlier one.

    A list becomes a comma-separated value.

    :returns: ``path``.
    """
    sections: dict[str, dict[str, object]] = {}
    for layer in layers:
        for group, options in layer.items():
            sections.setdefault(group, {}).update(options)
    with open(path, 'w', encoding='utf-8') as stream:
        for group, options in sections.items():
            stream.write(f'[{group}]\n')
            for name, value in options.items():
                stream.write(f'{name} = {_text(value)}\n')
            stream.write('\n')
    return path


def _text(value):
    if isinstance(value, (list, tuple)):
        return ','.join(str(item) for item in value)
    return str(value)
