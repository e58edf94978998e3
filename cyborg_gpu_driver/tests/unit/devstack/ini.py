# SPDX-License-Identifier: Apache-2.0

"""Look up or change one option of a file, in the place DevStack uses.

``devstack.sh`` runs this program without any installed packages. A new option
becomes the first of its group, and a new group the last of the file. All
other lines remain as they are.

usage: ini.py get|set|add|delete FILE GROUP OPTION [VALUE]
"""

import pathlib
import re
import sys


def change(lines, action, group, option, value):
    """Return the lines after ``action``, and the option's old value.

    :param lines: the lines of the file, without line ends.
    """
    found = ''
    header = f'[{group}]'
    if action in ('set', 'add') and header not in lines:
        lines = [*lines, '', header]
    at, here, replaced = None, False, False
    changed = []
    for line in lines:
        if line.startswith('['):
            here = line == header
            at = len(changed) if here else at
        elif here and re.match(rf'{re.escape(option)}[ \t]*=', line):
            found = line.partition('=')[2].strip()
            if action == 'delete':
                continue
            if action == 'set':
                line, replaced = f'{option} = {value}', True
        changed.append(line)
    if action == 'add' or (action == 'set' and not replaced):
        changed.insert(at + 1, f'{option} = {value}')
    return changed, found


def main(action, name, group, option, value=''):
    """Print the value for ``get``; otherwise change the file."""
    path = pathlib.Path(name)
    if action in ('get', 'delete') or path.exists():
        lines = path.read_text(encoding='utf-8').splitlines()
    else:
        lines = []
    lines, found = change(lines, action, group, option, value)
    if action == 'get':
        print(found)
    else:
        path.write_text(''.join(f'{line}\n' for line in lines),
                        encoding='utf-8')


if __name__ == '__main__':
    main(*sys.argv[1:])
