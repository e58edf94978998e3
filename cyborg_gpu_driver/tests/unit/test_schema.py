# SPDX-License-Identifier: Apache-2.0
"""The errors of documents that do not follow their schema."""


import hypothesis
import jsonschema
from hypothesis import strategies
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.partition.layout import yaml
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.tests.unit.fuzz import base as fuzz

_SCHEMAS = (
    definition.DEFINITION, files.HOST, inventory.INVENTORY,
    yaml.DEVICES, yaml.ITEMS, yaml.LAYOUT_FILE)
_FLAVOR = schema.mapping({
    'name': schema.matching('[a-z]+', 'lower-case letters', 'gpu'),
    'ram': schema.integer(1, 9)}, {
    'public': schema.TRUTH,
    'description': schema.nullable({'type': 'string', 'maxLength': 3}),
    'traits': schema.listing(schema.TEXT, uniqueItems=True),
    'size': {'enum': ['s', 'm', 'l']},
    'order': {'type': 'integer', 'const': 1},
    'ratio': {'type': 'number'},
    'either': {'anyOf': [
        {'const': 'all'},
        schema.listing(schema.integer(0), 1)]},
    'limits': {'type': 'object', 'minProperties': 1,
               'propertyNames': {'type': 'string', 'maxLength': 3},
               'additionalProperties': schema.integer(0)},
    'address': {'type': 'string', 'format': 'address'}})


def _address(text):
    if text != 'here':
        raise exception.InvalidValue(what='address', value=text,
                                     expected='expected here')


class CheckTest(base.BaseTestCase):

    def said(self, value, what=_FLAVOR):
        place = schema.Place('f.yaml')
        return str(self.assertRaises(
            exception.DocumentError, schema.check, value, what, place,
            {'address': _address}))

    def test_what_is_right(self):
        schema.check({
            'name': 'a', 'ram': 9, 'public': False, 'description': None,
            'traits': ['a', 'b'], 'size': 'l', 'order': 1, 'ratio': 1.5,
            'either': [0], 'limits': {'a': 0}, 'address': 'here'}, _FLAVOR,
            schema.Place('f.yaml'), {'address': _address})

    def test_each_keyword(self):
        good = {'name': 'a', 'ram': 1}
        for change, said in (
                ({'name': 'A'}, "name: found 'A'; expected lower-case "
                                'letters, such as gpu'),
                ({'name': 'a\n'}, "name: found 'a\\n'; expected lower-case"),
                ({'name': 5}, 'name: found 5; expected lower-case letters, '
                              'such as gpu, in quotes'),
                ({'name': None}, 'name: found nothing; expected lower-case'),
                ({'ram': '1'}, "ram: found '1'; expected a whole number from "
                               '1 to 9'),
                ({'ram': 0}, 'ram: found 0; expected a whole number from 1'),
                ({'ram': 10}, 'ram: found 10; expected a whole number'),
                ({'ram': 2.0}, 'ram: found 2.0; expected a whole number'),
                ({'ram': True}, 'ram: found true; expected a whole number'),
                ({'public': 1}, 'public: found 1; expected true or false'),
                ({'description': 'abcd'}, "description: found 'abcd'; "
                 'expected text of at most 3 characters, or null'),
                ({'traits': 'a'}, "traits: found 'a'; expected a list, each "
                                  'text'),
                ({'traits': ['a', []]}, 'traits[1]: found an empty list; '
                                        'expected text'),
                ({'traits': ['a', 'b', 'a']}, "traits[2]: 'a' appears "
                                              'twice; keep one'),
                ({'size': 'xl'}, "size: found 'xl'; expected s, m or l"),
                ({'order': 2}, 'order: found 2; expected 1'),
                ({'order': True}, 'order: found true; expected 1'),
                ({'ratio': []}, 'ratio: found an empty list; expected a '
                                'number'),
                ({'limits': {}}, 'limits: found an empty mapping; expected a '
                                 'mapping of at least one key'),
                ({'limits': {'abcd': 0}}, "limits: found key 'abcd'; "
                 'expected text of at most 3 characters'),
                ({'limits': {'a/b': -1}}, 'limits.a/b: found -1'),
                ({'limits': {'a b': -1}}, "limits['a b']: found -1"),
                ({'address': 'there'}, "address: found 'there'; expected "
                                       'here'),
                ({'sise': 'l'}, "top level: unknown key 'sise'; known keys: "
                 'name, ram, public, '),
                ({7: 'l'}, 'top level: unknown key 7; known keys: name, ')):
            self.assertIn(f'f.yaml: {said}', self.said({**good, **change}))

    def test_the_alternative_that_was_meant(self):
        for value, said in (
                ('some', "found 'some'; expected all, or a list of at least "
                         'one item, each a whole number from 0'),
                ([], 'found an empty list; expected a list of at least one'),
                ([0, 'x'], "[1]: found 'x'; expected a whole number from 0")):
            self.assertIn(said, self.said(
                {'name': 'a', 'ram': 1, 'either': value}))

    def test_one_of_two_keys(self):
        what = schema.mapping({}, {'a': {}, 'b': {}}, oneOf=[
            {'required': ['a']}, {'required': ['b']}],
            description='one of a and b')
        self.assertIn('found keys a, b; expected one of a and b',
                      self.said({'a': 1, 'b': 1}, what))
        self.assertIn('found an empty mapping; expected one of a and b',
                      self.said({}, what))

    def test_a_version_comes_first(self):
        what = schema.mapping({'version': {'const': 'v1'}})
        self.assertIn("version: found 'v2'; expected v1",
                      self.said({'later': 1, 'version': 'v2'}, what))
        self.assertIn("key 'version' is missing; expected v1",
                      self.said({}, what))

    def test_what_grows_when_it_is_written(self):
        """As with YAML aliases. The value is neither searched nor printed."""
        value = ['x']
        for _level in range(40):
            value = [value] * 9
        recursive = []
        recursive.append(recursive)
        text = ['x' * 1000000] * 1000
        for odd, said in ((value, 'more than can be read'),
                          (recursive, 'nested too deeply'),
                          (text, 'more than can be read'),
                          ({'a': [(text,)]}, 'more than can be read'),
                          ([1 << 99999], 'a number out of range')):
            self.assertIn(f'f.yaml: top level: {said}; expected at most ',
                          self.said(odd))

    def test_many_items_are_compared_in_linear_time(self):
        items = [str(number) for number in range(200000)]
        self.assertIn('traits[200000]: ', self.said(
            {'name': 'a', 'ram': 1, 'traits': [*items, '7']}))

    @fuzz.examples(150)
    @hypothesis.given(strategies.sampled_from(_SCHEMAS), fuzz.PLAIN)
    def test_any_value_is_right_or_has_one_line_said_of_it(self, what, value):
        try:
            schema.check(value, what, schema.Place('f.yaml'))
        except exception.DocumentError as error:
            self.assertTrue(str(error).startswith('f.yaml: '))
            self.assertNotIn('\n', str(error))
            str(error).encode()


class SchemasTest(base.BaseTestCase):

    def test_each_is_one_of_the_draft(self):
        for what in _SCHEMAS:
            jsonschema.Draft202012Validator.check_schema(what)
