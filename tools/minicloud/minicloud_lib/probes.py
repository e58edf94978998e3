# SPDX-License-Identifier: Apache-2.0

"""Probes that check whether a service is up.

A probe is a function without arguments. It returns None if the service is up,
otherwise a short text that says what is missing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import amqp
import pymysql
import requests
from amqp import exceptions as amqp_exceptions

from minicloud_lib import settings as settings_module

Probe = Callable[[], 'str | None']
_TIMEOUT = 5
_BROKER_USER = 'minicloud'


def http(url: str) -> Probe:
    """Return a probe for any HTTP answer but a server error (5xx)."""
    def probe():
        try:
            status = requests.get(url, timeout=_TIMEOUT).status_code
        except requests.RequestException as problem:
            return f'{url}: {type(problem).__name__}'
        return f'{url} answers {status}' if status >= 500 else None

    return probe


def port(number: int) -> Probe:
    """Return a probe for a port that accepts connections."""
    def probe():
        try:
            socket.create_connection((settings_module.ADDRESS, number),
                                     timeout=_TIMEOUT).close()
        except OSError as problem:
            return f'port {number}: {problem}'
        return None

    return probe


def database(settings: settings_module.Settings, user: str) -> Probe:
    """Return a probe for the login of a database user."""
    def probe():
        try:
            pymysql.connect(
                host=settings_module.ADDRESS, port=settings.port('mariadb'),
                user=user, password=settings.password(user),
                connect_timeout=_TIMEOUT).close()
        except pymysql.Error as problem:
            return str(problem)
        return None

    return probe


def broker(settings: settings_module.Settings) -> Probe:
    """Return a probe for the login of the broker's user."""
    def probe():
        try:
            _connected(settings).close()
        except (OSError, amqp_exceptions.AMQPError) as problem:
            return f'no connection: {problem or type(problem).__name__}'
        return None

    return probe


def consumer(settings: settings_module.Settings, queue: str) -> Probe:
    """Return a probe for a consumer of a queue."""
    def probe():
        try:
            connection = _connected(settings)
        except (OSError, amqp_exceptions.AMQPError) as problem:
            return f'no connection to the broker: {problem}'
        try:
            declared = connection.channel().queue_declare(queue, passive=True)
        except amqp_exceptions.NotFound:
            return f'no queue {queue}'
        finally:
            connection.close()
        return (None if declared.consumer_count
                else f'the queue {queue} has no consumer')

    return probe


def broker_user() -> str:
    """Return the user name of the services at the broker."""
    return _BROKER_USER


def _connected(settings):
    connection = amqp.Connection(
        f'{settings_module.ADDRESS}:{settings.port("rabbitmq")}',
        userid=_BROKER_USER, password=settings.password(_BROKER_USER),
        connect_timeout=_TIMEOUT, read_timeout=_TIMEOUT,
        write_timeout=_TIMEOUT)
    connection.connect()
    return connection
