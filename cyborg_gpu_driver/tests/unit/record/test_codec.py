# SPDX-License-Identifier: Apache-2.0

"""The codec of the records: it reads exactly what it has written."""

import dataclasses
import enum
import json
import typing
from collections.abc import Mapping

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.tests import scope

_NUMBERS = st.integers(0, 1 << 40)
_TIMES = st.floats(0, 1e11)
_ADDRESSES = st.builds(
    model.PciAddress, st.integers(0, 0xffff), st.integers(0, 0xff),
    st.integers(0, 0x1f), st.integers(0, 7))
_LEAVES = {
    gpu_record.Handle: st.uuids().map(str),
    health.Code: st.from_regex('[A-Z][A-Z0-9_]{0,9}', fullmatch=True).filter(
        lambda code: not code.startswith('XID_')),
    cordon.Text: st.text(max_size=9).filter(str.isprintable),
    gpu_record.VgpuType: st.integers(1, 999999999).map('nvidia-{}'.format),
    gpu_record.AskedType: st.one_of(
        st.integers(1, 999999999).map('nvidia-{}'.format),
        st.integers(1, 99).map('nvlink-{}'.format)),
    model.PciAddress: _ADDRESSES, int: _NUMBERS, float: _TIMES,
    str: st.text(max_size=9), bool: st.booleans(), type(None): st.none()}


def _offers():
    """A strategy for offers in records, whose numbers have limits."""
    hints = codec._hints(offer.Offer)
    return st.builds(offer.Offer, **{
        **{name: _values(kind) for name, kind in hints.items()},
        'total': st.integers(1, gpu_record.MOST_UNITS),
        'vgpu_type_id': st.none() | _LEAVES[gpu_record.VgpuType]})


def _values(kind):
    """A strategy for every value that a field of that type may hold."""
    if kind == gpu_record.ReportedOffer:
        return _offers()
    if kind in _LEAVES:
        return _LEAVES[kind]
    if typing.get_origin(kind) is not None or typing.get_args(kind):
        return _generic(kind)
    if issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    hints = codec._hints(kind)
    return st.builds(kind, **{
        field.name: _values(hints[field.name])
        for field in dataclasses.fields(kind)})


def _generic(kind):
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Mapping:
        return st.dictionaries(*map(_values, args), max_size=3)
    if origin is frozenset:
        return st.frozensets(_values(args[0]), max_size=3)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(_values(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_values, args))
    return st.one_of(*map(_values, args))


class Colour(enum.Enum):
    RED = 'red'


def even(value):
    """A check like those in type hints."""
    if value % 2:
        raise ValueError(f'{value} is odd')
    return value


@dataclasses.dataclass(frozen=True)
class Inner:
    number: typing.Annotated[int, even]
    model: str | None = None
    """A field with the name of a module, as records have."""


@dataclasses.dataclass(frozen=True)
class Outer:
    pair: tuple[int, str]
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    some: frozenset[int] = frozenset()
    by_gpu: Mapping[model.PciAddress, bool] = dataclasses.field(
        default_factory=dict)
    colour: Colour = Colour.RED
    when: float = 0.0


_WHOLE = {'pair': [1, 'a'], 'inner': {'number': 2, 'model': 'b'},
          'many': [{'number': 0}], 'some': [1, 2],
          'by_gpu': {'0000:07:00.0': True}, 'when': 1.5}


class RoundTripTest(base.BaseTestCase):

    @hypothesis.settings(max_examples=scope.examples(300))
    @hypothesis.given(_values(gpu_record.GpuRecord))
    def test_of_records(self, record):
        written = json.loads(json.dumps(codec.encode(record)))
        self.assertEqual(record, codec.decode(gpu_record.GpuRecord, written))

    def test_what_is_not_said_has_its_default(self):
        self.assertEqual({'pair': [1, 'a']},
                         codec.encode(Outer((1, 'a'))))
        self.assertEqual(Outer((1, 'a')),
                         codec.decode(Outer, {'pair': [1, 'a']}))

    def test_all_that_a_hint_can_say(self):
        found = codec.decode(Outer, _WHOLE)
        self.assertEqual(
            Outer((1, 'a'), Inner(2, 'b'), (Inner(0),), frozenset({1, 2}),
                  {model.PciAddress.parse('0000:07:00.0'): True}, when=1.5),
            found)
        self.assertEqual(_WHOLE, codec.encode(found))


class RefusedTest(base.BaseTestCase):

    def refused(self, says, **wrong):
        error = self.assertRaises(ValueError, codec.decode, Outer,
                                  {**_WHOLE, **wrong})
        self.assertIn(says, str(error))

    def test_what_is_something_else(self):
        self.refused('pair', pair=[1])
        self.refused('pair', pair={'1': 'a'})
        self.refused('number', pair=[True, 'a'])
        self.refused('text', pair=[1, 2])
        self.refused('odd', inner={'number': 1})
        self.refused('inner: number', inner={'number': 2.0})
        self.refused('Inner', inner={})
        self.refused('Inner', inner=[2])
        self.refused('many', many=None)
        self.refused('some', some=[-1])
        self.refused('by_gpu', by_gpu={'x': True})
        self.refused('by_gpu', by_gpu={'0000:07:00.0': 1})
        self.refused('by_gpu', by_gpu=[])
        self.refused('colour', colour='blue')
        self.refused('when', when=float('nan'))
        self.refused('when', when=1e300)
        self.refused('when', when=-1)

    def test_what_is_no_dataclass_at_all(self):
        for content in (None, [], 0, 'x', {}):
            self.assertRaises(ValueError, codec.decode, Outer, content)
