# SPDX-License-Identifier: Apache-2.0

"""The applications whose interference is measured. Pure.

A file in YAML or JSON names each application with its command:

.. code-block:: yaml

   version: 1
   applications:
     compress: {command: gzip -9 --stdout data}
     train: {command: [python3, train.py], out_of_memory_exit_codes: [77]}
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.nova.weighing import placement
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml

MOST = 64
"""Maximum number of applications in a file: 4,096 pairs."""
EXIT_CODE_MAX = 255

_WORDS = schema.listing({'type': 'string', 'maxLength': 1 << 16}, least=1)
NAME = schema.matching(
    placement.NAME, 'a name of letters, digits, ".", "_", "+" and "-"',
    'lammps', 'resnet-50')
APPLICATION = schema.mapping(
    {'command': {'anyOf': [schema.TEXT, _WORDS]}},
    {'out_of_memory_exit_codes': schema.listing(
        schema.integer(1, EXIT_CODE_MAX))})
_FILE = schema.mapping({
    'version': {'const': 1},
    'applications': {
        'type': 'object', 'minProperties': 1, 'maxProperties': MOST,
        'propertyNames': NAME, 'additionalProperties': APPLICATION}})


@dataclasses.dataclass(frozen=True)
class Application:
    """A command with a name.

    :ivar command: the program and its arguments; no shell reads them.
    :ivar out_of_memory_exit_codes: the exit codes that mean that it ran out
        of memory, of the host or of the GPU.
    """

    name: str
    command: tuple[str, ...]
    out_of_memory_exit_codes: frozenset[int] = frozenset()

    @classmethod
    def of(cls, name: str, item: dict[str, Any], place: schema.Place
           ) -> Application:
        """Create it from an entry that fits :data:`APPLICATION`.

        :raises DocumentError: if its command cannot be split into words.
        """
        command = item['command']
        if isinstance(command, str):
            try:
                command = shlex.split(command)
            except ValueError as error:
                raise place.below('command').error(
                    str(error), 'expected a command in shell syntax'
                ) from error
        # No argument of execve() has a null byte.
        if not command or not command[0] or '\0' in ''.join(command):
            raise place.below('command').error(
                'no command', 'expected a program and its arguments')
        return cls(name, tuple(command),
                   frozenset(item.get('out_of_memory_exit_codes', ())))

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for the file with the results."""
        return {'command': list(self.command), 'out_of_memory_exit_codes':
                sorted(self.out_of_memory_exit_codes)}


def parse(text: str, source: str) -> list[Application]:
    """Return the applications of a file, in the order of the file.

    :param source: the file's name, for errors.
    :raises DocumentError: names the place and what is expected there.
    """
    place = schema.Place(source)
    content = layout_yaml.plain(text, place)
    schema.check(content, _FILE, place)
    return [Application.of(name, item, place.below('applications', name))
            for name, item in content['applications'].items()]


def from_options(texts: Iterable[str], option: str) -> list[Application]:
    """Return the applications of options, each ``NAME=COMMAND``.

    :param option: its name, for errors.
    :raises DocumentError: names what is wrong with an option.
    """
    found = []
    for text in texts:
        name, equals, command = text.partition('=')
        place = schema.Place(f'{option} {text}')
        if not equals:
            raise place.wrong(text, 'NAME=COMMAND')
        schema.check(name, NAME, place)
        found.append(Application.of(name, {'command': command}, place))
    return found


def checked(found: Iterable[Application], codes: frozenset[int]
            ) -> list[Application]:
    """Return the applications, if their names differ.

    :param codes: exit codes that mean "out of memory" for all of them.
    :raises InvalidValue: names an application that appears twice.
    """
    by_name: dict[str, Application] = {}
    for item in found:
        if item.name in by_name:
            raise exception.InvalidValue(
                what='application', value=item.name,
                expected='expected each name once')
        by_name[item.name] = dataclasses.replace(
            item, out_of_memory_exit_codes=(
                item.out_of_memory_exit_codes | codes))
    return list(by_name.values())
