# SPDX-License-Identifier: Apache-2.0

"""Names of profiles and vGPU types: they parse, print and compare.

A name describes a thing but does not identify it: two boards give the same
name to different profiles (1g.10gb is an eighth of one A100 and a quarter of
another). So a name is looked up on one GPU, in what NVML lists.
"""

from __future__ import annotations

import dataclasses
import re

from cyborg_gpu_driver import exception

ATTRIBUTES = ('+me', '+me.all', '+gfx', '-me')
"""Attributes of GPU instance profiles: with media extensions, with all of
them, with graphics, without media engines."""

SERIES = 'CQBA'
"""Series of vGPU types (compute, workstation, desktop, application), in the
order of preference of a compute cloud."""

_PROFILE = re.compile(
    r'(?:(?P<compute>[1-9]\d?)c\.)?(?P<slices>[1-9]\d?)g\.'
    r'(?P<memory>[1-9]\d{0,3})gb'
    r'(?P<attributes>(?P<sign>[+-])[a-z.]+(?:,[a-z.]+)*)?', re.ASCII)

_VGPU_TYPE = re.compile(
    r'(?P<product>\w*[A-Za-z]\w*(?:-[A-Za-z]\w*)*)-(?:(?P<slices>[1-9]\d?)-)?'
    r'(?P<memory>0|[1-9]\d{0,3})(?P<series>[ABCQ])'
    r'(?P<suffix>ME|NOME|MEALL|GFX|\d)?', re.ASCII)


@dataclasses.dataclass(frozen=True)
class ProfileName:
    """The name of a GPU instance profile, or of a part of one.

    ``1g.10gb``, ``1g.10gb+me``; ``1c.3g.20gb`` is a compute instance of one
    slice in a GPU instance of three.
    """

    compute: int | None
    """Compute slices of a compute instance; None for the GPU instance."""
    slices: int
    memory_gb: int
    attributes: frozenset[str] = frozenset()
    """Values of :data:`ATTRIBUTES`; pluses and minuses never together."""

    def __post_init__(self) -> None:
        unknown = sorted(self.attributes - set(ATTRIBUTES))
        if unknown:
            raise _invalid_profile(
                str(self), 'unknown attribute ' + ', '.join(unknown)
                + '; expected ' + ', '.join(ATTRIBUTES))
        if len({attribute[0] for attribute in self.attributes}) > 1:
            raise _invalid_profile(
                str(self), 'a profile name has either + or - attributes, '
                'not both')
        if self.compute is not None and self.compute >= self.slices:
            raise _invalid_profile(
                str(self), 'a compute instance has its own name only if it '
                'is smaller than its GPU instance, such as 1c.3g.20gb')

    @classmethod
    def parse(cls, text: str) -> ProfileName:
        """Read a name as ``nvidia-smi mig`` prints it, without ``MIG``.

        A compute instance that fills its GPU instance has no name of its
        own, but mig-parted lists ``1c.1g.5gb`` too (known_configs.go).

        :raises InvalidValue: with what is expected.
        """
        match = _PROFILE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise _invalid_profile(
                text, 'expected SLICESg.MEMORYgb such as 1g.10gb, '
                '1g.10gb+me or 1c.3g.20gb')
        sign = match['sign'] or ''
        words = (match['attributes'] or sign)[len(sign):]
        listed = [sign + word for word in words.split(',') if word]
        if listed != sorted(set(listed)):
            raise _invalid_profile(
                text, 'attributes must be unique and in alphabetical order')
        compute, slices = match['compute'], match['slices']
        return cls(
            compute=int(compute) if compute and int(compute) != int(slices)
            else None, slices=int(slices), memory_gb=int(match['memory']),
            attributes=frozenset(listed))

    def __str__(self) -> str:
        compute = '' if self.compute is None else f'{self.compute}c.'
        attributes = sorted(self.attributes)
        sign = attributes[0][0] if attributes else ''
        words = ','.join(attribute[1:] for attribute in attributes)
        return f'{compute}{self.slices}g.{self.memory_gb}gb{sign}{words}'


@dataclasses.dataclass(frozen=True)
class VgpuTypeName:
    """The name of a vGPU type: the last word of NVML's or sysfs's name."""

    product: str
    """``A100``, ``T4``, ``RTX6000-Ada``."""
    slices: int | None
    """Compute slices of its GPU instance; None for a time-sliced type."""
    framebuffer_gb: int
    """0 means half a GiB."""
    series: str
    """One letter of :data:`SERIES`."""
    suffix: str = ''
    """``ME``, ``NOME``, ``MEALL``, ``GFX`` (what the GPU instance has) or
    the number of displays of a B type."""

    @classmethod
    def parse(cls, text: str) -> VgpuTypeName:
        """Read a name such as ``T4-2B`` or ``A100-1-5CME``.

        :raises InvalidValue: with what is expected.
        """
        match = (_VGPU_TYPE.fullmatch(text) if isinstance(text, str)
                 else None)
        if match is None:
            raise exception.InvalidValue(
                what='vGPU type name', value=text,
                expected='expected PRODUCT-GB and a series letter such as '
                         'T4-2B, or PRODUCT-SLICES-GB such as A100-1-5C')
        return cls(
            product=match['product'],
            slices=int(match['slices']) if match['slices'] else None,
            framebuffer_gb=int(match['memory']), series=match['series'],
            suffix=match['suffix'] or '')

    def __str__(self) -> str:
        slices = '' if self.slices is None else f'{self.slices}-'
        return (f'{self.product}-{slices}{self.framebuffer_gb}'
                f'{self.series}{self.suffix}')


def _invalid_profile(text: str, expected: str) -> exception.InvalidValue:
    return exception.InvalidValue(
        what='profile name', value=text, expected=expected)
