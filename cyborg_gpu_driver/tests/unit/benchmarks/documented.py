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

"""The figures of the benchmarks in the documentation."""

from __future__ import annotations

import csv
import pathlib
import re

PAGE = (pathlib.Path(__file__).resolve().parents[4] / 'doc' / 'source'
        / 'reference' / 'performance.rst')
TABLES = PAGE.with_suffix('')
"""The directory of the page's CSV files."""


def rows(name):
    """Return the rows of a CSV file, as dictionaries."""
    with (TABLES / f'{name}.csv').open(encoding='utf-8',
                                       newline='') as stream:
        return list(csv.DictReader(stream))


def missing(name, figures):
    """Return the figures that the table of a benchmark does not have.

    Numbers in a figure's name, such as of hosts or GPU instances, are
    ignored.
    """
    shown = {_kind(row['figure']) for row in rows(name)}
    return sorted({_kind(figure.name) for figure in figures} - shown)


def _kind(figure):
    return re.sub(r'\d+(\.\d+)?', '#', figure)
