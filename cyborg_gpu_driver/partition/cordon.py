# SPDX-License-Identifier: Apache-2.0

"""Which GPUs get no new server, with the source, time and reason. Pure.

A GPU may have one cordon of each source at the same time. The GPU gets new
servers again when the last cordon is lifted.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import json
from collections.abc import Collection
from collections.abc import Iterable
from typing import Annotated
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments

REASON_BYTES = 90
"""Maximum length of a reason in UTF-8. The trait of a cordon contains it."""
TRAIT = 'CUSTOM_GPU_CORDON_'
"""Prefix of the traits of cordons. Base32 of the time, the user and the
reason follows: Placement allows A-Z, 0-9 and _ in 255 characters (os-traits,
placement/schemas/trait.py)."""
FOR_A_MOVE = 'openstack gpu defragment'
"""Reason of a cordon that is lifted once a server has moved. A cordon with
any other reason replaces it."""
_WHO_BYTES = 40
_BLOCK = 8
"""Base32 comes in blocks of this many characters."""


class Source(enum.Enum):
    """What set a cordon."""

    OPERATOR = 'operator'
    """An operator on the host."""
    CYBORG = 'cyborg'
    """The user who disabled the device in Cyborg, until it is enabled."""
    HEALTH = 'health'
    """The agent, after too many errors of the GPU."""
    RECORD = 'record'
    """Whoever found the GPU's record damaged: the record no longer tells
    whether the GPU was cordoned or unhealthy."""


ON_HOST = frozenset({Source.OPERATOR, Source.HEALTH, Source.RECORD})
"""The cordons that an operator lifts on the host."""


def _checked_text(value: str) -> str:
    """Return a name or reason, which terminals and metrics show."""
    if type(value) is not str or not value.isprintable():
        raise ValueError(f'{value!r} is not a line of text')
    return value


Text = Annotated[str, _checked_text]


@dataclasses.dataclass(frozen=True)
class Cordon:
    """Why a GPU gets no new server."""

    source: Source
    since: float | None = None
    """Seconds of the epoch; None if the time is not known."""
    who: Text = ''
    """User name; empty if the user is not known."""
    reason: Text = ''

    def __str__(self) -> str:
        text = {Source.OPERATOR: 'cordoned on the host',
                Source.CYBORG: 'disabled in Cyborg',
                Source.HEALTH: 'cordoned because of its errors',
                Source.RECORD: 'cordoned because its record was damaged',
                }[self.source]
        if self.who:
            text += f' by {self.who}'
        if self.since is not None:
            text += f' since {moments.iso(self.since)}'
        return f'{text}: {self.reason}' if self.reason else text


Cordons = tuple[Cordon, ...]


def added(cordons: Iterable[Cordon], new: Cordon) -> Cordons:
    """Return the cordons with a new one, which replaces its source's."""
    return tuple(sorted((*without(cordons, {new.source}), new),
                        key=lambda item: list(Source).index(item.source)))


def without(cordons: Iterable[Cordon], sources: Collection[Source]
            ) -> Cordons:
    """Return the cordons that remain when those of some sources are lifted."""
    return tuple(item for item in cordons if item.source not in sources)


def of(cordons: Iterable[Cordon], source: Source) -> Cordon | None:
    """Return the cordon of a source; None without one."""
    return next((item for item in cordons if item.source is source), None)


def text(cordons: Iterable[Cordon]) -> str:
    """Return a text of all cordons of a GPU; empty without one."""
    return '; '.join(map(str, cordons))


def reason(value: str) -> str:
    """Return a reason as the operator gave it.

    :raises InvalidValue: if it is empty, too long or cannot be printed.
    """
    value = value.strip()
    if not value:
        raise exception.InvalidValue(
            what='reason', value=value,
            expected='say in a few words why the GPU is cordoned')
    if not value.isprintable():
        raise exception.InvalidValue(
            what='reason', value=value,
            expected='expected one line without control characters')
    if len(value.encode()) > REASON_BYTES:
        raise exception.InvalidValue(
            what='reason', value=value,
            expected=f'expected at most {REASON_BYTES} bytes in UTF-8')
    return value


def trait(cordon: Cordon) -> str:
    """Return the trait that describes a cordon: when, who and why.

    A user name that is too long is truncated.
    """
    who = cordon.who.encode()[:_WHO_BYTES].decode(errors='ignore')
    content = f'{int(cordon.since or 0)}\n{who}\n{cordon.reason}'
    return TRAIT + base64.b32encode(content.encode()).decode().rstrip('=')


def plain(cordon: Cordon) -> dict[str, Any]:
    """Return a cordon in the form of messages and the API."""
    return {**dataclasses.asdict(cordon), 'source': cordon.source.value}


def to_json(cordons: Iterable[Cordon]) -> str:
    """Return the cordons as Cyborg's API shows them; see :func:`of_json`."""
    return json.dumps(list(map(plain, cordons)), sort_keys=True)


def of_json(text: str) -> Cordons:
    """Return the cordons that :func:`to_json` wrote.

    :raises ValueError, KeyError, TypeError, OverflowError, OSError: if
        ``text`` is anything else.
    """
    content = json.loads(text)
    if type(content) is not list:
        raise ValueError(f'{text!r} is not a list')
    found = []
    for item in content:
        since = item['since'] if item['since'] is None else float(
            item['since'])
        moments.of(since or 0.0)
        found.append(Cordon(Source(item['source']), since,
                            _checked_text(item['who']),
                            _checked_text(item['reason'])))
    return tuple(found)


def of_traits(traits: Iterable[str]) -> Cordon | None:
    """Return the latest cordon in Cyborg that a provider's traits describe.

    A malformed trait is ignored, because every user who may write to
    Placement can set one.
    """
    found = [item for item in map(_of_trait, traits) if item is not None]
    return max(found, key=lambda item: item.since or 0.0, default=None)


def current(told: Iterable[Cordon], enabled: bool,
            traits: Iterable[str] = ()) -> Cordons:
    """Return the cordons of a GPU as the cloud's services report them.

    :param told: what Cyborg's API shows, from the agent's last report.
    :param traits: of the GPU's providers.
    """
    told = tuple(told)
    on_host = without(told, {Source.CYBORG})
    if enabled:
        return on_host
    return added(on_host, of_traits(traits) or of(told, Source.CYBORG)
                 or Cordon(Source.CYBORG))


def _of_trait(name: str) -> Cordon | None:
    if not name.startswith(TRAIT):
        return None
    content = name.removeprefix(TRAIT)
    try:
        since, who, why = base64.b32decode(
            content + '=' * (-len(content) % _BLOCK)).decode().split('\n')
        moments.of(int(since))
        return Cordon(Source.CYBORG, float(int(since)) or None,
                      _checked_text(who), _checked_text(why))
    except (ValueError, OverflowError, OSError, binascii.Error):
        return None
