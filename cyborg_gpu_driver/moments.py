# SPDX-License-Identifier: Apache-2.0

"""Moments and periods, as people type and read them."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import math
import re
from collections.abc import Callable

from oslo_utils import timeutils

from cyborg_gpu_driver import exception

WAYS = ('an ISO 8601 time (UTC if it has no offset), or how long ago, such '
        'as 90m, 12h or 7d')
_DATE_DIGITS = len('20261121')
_AGO = re.compile('(?P<number>[0-9]{1,6})(?P<unit>[smhdw])', re.ASCII)
_UNITS = {'s': 'seconds', 'm': 'minutes', 'h': 'hours', 'd': 'days',
          'w': 'weeks'}


def of(seconds: float) -> datetime.datetime:
    """The aware moment in UTC.

    :param seconds: of the epoch.
    """
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def iso(seconds: float) -> str:
    """The moment in ISO 8601 and UTC, to the second."""
    return of(seconds).isoformat(timespec='seconds')


def parse(option: str, text: str | None) -> datetime.datetime | None:
    """The aware moment that a person typed, in UTC; None for None."""
    if text is None:
        return None
    match = _AGO.fullmatch(text)
    try:
        if match:
            return timeutils.utcnow(True) - datetime.timedelta(
                **{_UNITS[match['unit']]: int(match['number'])})
        if text.isdecimal() and len(text) < _DATE_DIGITS:
            # Probably seconds, not a year.
            raise ValueError(text)
        return timeutils.parse_isotime(text).astimezone(datetime.timezone.utc)
    except (ValueError, OverflowError):
        raise exception.InvalidValue(
            what=option, value=text, expected='expected a time such as '
            '2026-11-21T09:30 or how long ago, such as 90m, 12h or 7d'
        ) from None


def seconds(least: float, most: float = math.inf, whole: bool = False
            ) -> Callable[[str], float]:
    """The ``argparse`` type of an option that is a number of seconds."""
    allowed = (f'from {least:g} to {most:g}' if most < math.inf
               else f'of at least {least:g}')

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            number = int(text) if whole else float(text)
            if least <= number <= most and number < math.inf:
                return number
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a {"whole " if whole else ""}number of seconds '
            + allowed)

    return read


def add_period(parser: argparse.ArgumentParser) -> None:
    """Add ``--start`` and ``--end``, which :func:`period` reads."""
    parser.add_argument(
        '--start', metavar='TIME',
        help=f'count from this time on: {WAYS} (default: all that is '
             'recorded)')
    parser.add_argument(
        '--end', metavar='TIME',
        help='count up to this time, in the same form (default: now)')


def period(start: str | None, end: str | None) -> tuple[float, float]:
    """The period that a person typed, in seconds of the epoch.

    :param start: None for all time before ``end``.
    :param end: None for now. A later moment is replaced by now.
    """
    now = timeutils.utcnow(True)
    begin = parse('--start', start)
    until = min(parse('--end', end) or now, now)
    if begin is not None and begin > until:
        raise exception.InvalidValue(
            what='--start', value=start,
            expected='expected a time before --end, and not in the future')
    return begin.timestamp() if begin else 0.0, until.timestamp()
