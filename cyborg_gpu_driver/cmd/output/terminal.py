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

"""Messages and questions to the user, and files that the user names."""

import sys

from cyborg_gpu_driver import exception

_STDIN = '-'


def read_text(name: str) -> tuple[str, str]:
    """Return a file's text, and the file's name for error messages.

    :param name: a path, or ``-`` for standard input.
    :raises InvalidValue: if the file cannot be read.
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
    """Ask the user a question; return whether the answer is yes.

    :param question: such as ``Remove 2 vGPUs?``.
    """
    print(f'{question} [y/N] ', end='', file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ('y', 'yes')


def say(message: str) -> None:
    """Print one line to standard error, apart from the answer for programs."""
    print(message, file=sys.stderr)
