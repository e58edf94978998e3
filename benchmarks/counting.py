# SPDX-License-Identifier: Apache-2.0

"""Recording of SQL statements and requests, for benchmarks that count them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import requests
import sqlalchemy


@contextlib.contextmanager
def statements() -> Iterator[list[str]]:
    """Record the SQL statements to Cyborg's database, except BEGIN."""
    asked: list[str] = []

    def note(connection, cursor, statement, *_):
        if ('placement' not in str(connection.engine.url)
                and not statement.startswith('BEGIN')):
            asked.append(statement)

    engine = sqlalchemy.engine.Engine
    sqlalchemy.event.listen(engine, 'before_cursor_execute', note)
    try:
        yield asked
    finally:
        sqlalchemy.event.remove(engine, 'before_cursor_execute', note)


@contextlib.contextmanager
def requests_sent(url: str = '') -> Iterator[list[str]]:
    """Record the paths that this process requests.

    :param url: record only requests whose URL begins with this.
    """
    sent: list[str] = []
    send = requests.Session.send

    def noted(session, request, **named):
        if request.url.startswith(url):
            sent.append(request.path_url)
        return send(session, request, **named)

    requests.Session.send = noted
    try:
        yield sent
    finally:
        requests.Session.send = send
