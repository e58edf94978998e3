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

"""What commands say to people and ask them, and the files they name."""

import sys

from cyborg_gpu_driver import exception

_STDIN = '-'


def read_text(name: str) -> tuple[str, str]:
    """A file's text, and what to call it in complaints.

    :param name: a path, or ``-`` for standard input.
    :raises InvalidValue: if it cannot be read.
    """
    try:
        if name == _STDIN:
            return sys.stdin.read(), 'standard input'
        with open(name, encoding='utf-8') as stream:
            return stream.read(), name
    except (OSError, UnicodeDecodeError) as error:
        raise exception.InvalidValue(
            what='file', value=name, expected=f'cannot be read: {error}'
        ) from error


def agreed(question: str) -> bool:
    """Whether a person says yes.

    :param question: such as ``Remove 2 vGPUs?``.
    """
    print(f'{question} [y/N] ', end='', file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ('y', 'yes')


def say(message: str) -> None:
    """One line for people, apart from the answer for programs."""
    print(message, file=sys.stderr)
