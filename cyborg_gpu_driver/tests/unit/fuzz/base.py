# SPDX-License-Identifier: Apache-2.0


"""The base of the fuzz tests: number of examples, inputs, allowed results."""

from __future__ import annotations

import copy
import logging

import fixtures
import hypothesis
import yaml
from hypothesis import strategies
from oslotest import base

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.fuzz import checks

TEXTS = strategies.one_of(
    strategies.text(max_size=12),
    strategies.sampled_from((
        '', '.', '..', '../../x', '/etc/passwd', '\0', '\ud800', 'nvidia-474',
        'nvidia-474/../..', '0000:07:00.0', '0000:07:00.4', '::.', '1g.5gb',
        '7f3b1c0e-5b6a-4d0f-9a53-0d4d8e1f2a3b', '1' * 5000, '\u0663', '\xb2',
        '0xffff', '-1', 'x' * 5000, 'true', 'nan', '%s{x}')))
NUMBERS = strategies.one_of(
    strategies.integers(-2, 99), strategies.floats(), strategies.sampled_from(
        (1 << 31, 1 << 64, 10 ** 400, -1e308, 1e18, True, False)))
PLAIN = strategies.recursive(
    strategies.one_of(strategies.none(), NUMBERS, TEXTS),
    lambda inner: strategies.one_of(
        strategies.lists(inner, max_size=3),
        strategies.dictionaries(TEXTS, inner, max_size=3)), max_leaves=4)
"""Any value that JSON can hold."""

ODDITIES = (
    'v1', '0x' + 'f' * 5000, '1:60:60', '2026-01-01', '0001-01-01 00:00:00'
    '+23:00', '!!int ""', '!!int "+"', '!!float ""', '!!bool x', '.nan',
    '!!timestamp x', '!!null x', '!!binary "a"', '!!set {a}', '!!omap [a]',
    '!!pairs [[a]]', '!!map [a]', '!!seq {a: 1}', '!!str {a: 1}', '&a [*a]',
    '&a {<<: *a}', '{<<: [1]}', '? [1]', '!!python/object:os.system x', '*a',
    '1' * 5000, '-1', '"\\uD800"', '[' * 400, '{a: ' * 400, '0b', '0x',
    '1e400', '!<tag:yaml.org,2002:int> x', '!!merge x', '=', '---')
"""Values that only YAML has, and invalid values."""


def examples(number):
    """Return test settings for ``number`` examples in all, or a part."""
    return hypothesis.settings(
        max_examples=scope.examples(number), database=None,
        suppress_health_check=list(hypothesis.HealthCheck))


@strategies.composite
def mutated(draw, document):
    """A valid document with mistakes in one to three places."""
    root = [copy.deepcopy(document)]
    for _ in range(draw(strategies.integers(1, 3))):
        places = list(_places(root))
        container, key = draw(strategies.sampled_from(places))
        what = draw(strategies.sampled_from(
            ('replace', 'replace', 'remove', 'repeat', 'add', 'move')))
        if what == 'remove' and container is not root:
            del container[key]
        elif what == 'repeat' and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        elif what == 'add' and isinstance(container, dict):
            container[draw(TEXTS)] = draw(PLAIN)
        elif what == 'move':
            there, name = draw(strategies.sampled_from(places))
            container[key] = copy.deepcopy(there[name])
        else:
            container[key] = draw(PLAIN)
    return root[0]


def _places(container):
    for key in (container if isinstance(container, dict)
                else range(len(container))):
        yield container, key
        if isinstance(container[key], (dict, list)):
            yield from _places(container[key])


@strategies.composite
def yaml_texts(draw, document):
    """The text of a document with values that only YAML has."""
    text = yaml.safe_dump(draw(mutated(document)),
                          default_flow_style=draw(strategies.booleans()))
    for word in draw(strategies.lists(strategies.sampled_from((
            'v1', 'all', 'true', '2', '0', 'null')), max_size=2)):
        text = text.replace(word, draw(strategies.sampled_from(ODDITIES)), 1)
    return text


def odd_texts(document, *words):
    """Return each oddity, and a document with some of them for some words."""
    text = yaml.safe_dump(document, default_flow_style=True)
    return [*ODDITIES, *scope.some([
        text.replace(word, oddity) for oddity in ODDITIES for word in words])]


@strategies.composite
def damaged(draw, data):
    """The bytes of a valid file, changed or cut short, or other bytes."""
    if draw(strategies.booleans()):
        return draw(strategies.binary(max_size=64))
    start = draw(strategies.integers(0, len(data)))
    end = draw(strategies.integers(start, min(len(data), start + 20)))
    return data[:start] + draw(strategies.binary(max_size=4)) + data[end:]


class FuzzCase(base.BaseTestCase):
    """A test that has a directory of its own and logs nothing."""

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.addCleanup(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)

    def attempt(self, action, *args):
        """Return the result, or None after an error of this library.

        Any other error fails the test, and so does an error of this library
        that has no message.
        """
        return checks.attempt(action, *args)
