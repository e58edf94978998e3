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


"""Values of YAML that JSON does not have, for the fuzz tests of YAML files."""

import yaml
from hypothesis import strategies

from cyborg_gpu_driver.tests.unit.fuzz import base

SCALARS = (
    'v1', '0x' + 'f' * 5000, '1:60:60', '2026-01-01', '0001-01-01 00:00:00'
    '+23:00', '!!int ""', '!!int "+"', '!!float ""', '!!bool x', '.nan',
    '!!timestamp x', '!!null x', '!!binary "a"', '!!set {a}', '!!omap [a]',
    '!!pairs [[a]]', '!!map [a]', '!!seq {a: 1}', '!!str {a: 1}', '&a [*a]',
    '&a {<<: *a}', '{<<: [1]}', '? [1]', '!!python/object:os.system x', '*a',
    '1' * 5000, '-1', '"\\uD800"', '[' * 400, '{a: ' * 400, '0b', '0x',
    '1e400', '!<tag:yaml.org,2002:int> x', '!!merge x', '=', '---')
"""Values that only YAML has, and invalid values."""


@strategies.composite
def texts(draw, document):
    """The text of a document with values that only YAML has."""
    text = yaml.safe_dump(draw(base.mutated(document)),
                          default_flow_style=draw(strategies.booleans()))
    for word in draw(strategies.lists(strategies.sampled_from((
            'v1', 'all', 'true', '2', '0', 'null')), max_size=2)):
        text = text.replace(word, draw(strategies.sampled_from(
            SCALARS)), 1)
    return text
