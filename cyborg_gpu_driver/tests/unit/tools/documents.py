# SPDX-License-Identifier: Apache-2.0

"""The parts of the documentation: pages, blocks of code, command lines."""

from __future__ import annotations

import pathlib
import re
import shlex
import textwrap
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[4]
SOURCE = ROOT / 'doc' / 'source'

_BLOCK = re.compile(
    r'^( *)\.\. code-block:: (\S+)\n(?:\1 +:.*\n)*\n((?:\1 {3}.*\n|\n)+)',
    re.MULTILINE)
_INCLUDE = re.compile(r'^\.\. include:: (\S+\.inc)\n', re.MULTILINE)
_PROMPT = re.compile(r'^[#$] ((?:.*\\\n)*.*)$', re.MULTILINE)
_REDIRECTIONS = frozenset({'>', '>>', '|'})


def pages() -> list[pathlib.Path]:
    """Return the README and every page, in a fixed order."""
    return [ROOT / 'README.rst', *sorted(SOURCE.rglob('*.rst'))]


def text(page: pathlib.Path) -> str:
    """Return a page as readers see it, with the fragments it includes."""
    return _INCLUDE.sub(
        lambda match: (page.parent / match[1]).read_text(encoding='utf-8'),
        page.read_text(encoding='utf-8'))


def blocks(of: str, language: str) -> Iterator[str]:
    """Generate each block of code in a language, without indentation."""
    for match in _BLOCK.finditer(of):
        if match[2] == language:
            yield textwrap.dedent(match[3]).strip('\n') + '\n'


def commands(of: str, program: str) -> Iterator[list[str]]:
    """Generate the words of each command line that runs a program.

    The command line follows a prompt. Redirections and pipes are cut off.
    """
    for block in blocks(of, 'console'):
        for match in _PROMPT.finditer(block):
            if match[1].split()[:1] == [program]:
                words = shlex.split(match[1].replace('\\\n', ' '))
                yield words[:next(
                    (number for number, word in enumerate(words)
                     if word in _REDIRECTIONS), len(words))]
