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

"""Questions whose answer tells that a service is up.

Each is a function without arguments that returns None, or in a few words
what is missing.
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
    """Whether something answers there, with whatever but its own error."""
    def probe():
        try:
            status = requests.get(url, timeout=_TIMEOUT).status_code
        except requests.RequestException as problem:
            return f'{url}: {type(problem).__name__}'
        return f'{url} answers {status}' if status >= 500 else None

    return probe


def port(number: int) -> Probe:
    """Whether connections are taken."""
    def probe():
        try:
            socket.create_connection((settings_module.ADDRESS, number),
                                     timeout=_TIMEOUT).close()
        except OSError as problem:
            return f'port {number}: {problem}'
        return None

    return probe


def database(settings: settings_module.Settings, user: str) -> Probe:
    """Whether a user of the database can log in."""
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
    """Whether the broker lets its user in."""
    def probe():
        try:
            _connected(settings).close()
        except (OSError, amqp_exceptions.AMQPError) as problem:
            return f'no connection: {problem or type(problem).__name__}'
        return None

    return probe


def consumer(settings: settings_module.Settings, queue: str) -> Probe:
    """Whether somebody takes messages from a queue."""
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
                else f'nobody listens to the queue {queue}')

    return probe


def broker_user() -> str:
    """The services' name at the broker."""
    return _BROKER_USER


def _connected(settings):
    connection = amqp.Connection(
        f'{settings_module.ADDRESS}:{settings.port("rabbitmq")}',
        userid=_BROKER_USER, password=settings.password(_BROKER_USER),
        connect_timeout=_TIMEOUT, read_timeout=_TIMEOUT,
        write_timeout=_TIMEOUT)
    connection.connect()
    return connection
