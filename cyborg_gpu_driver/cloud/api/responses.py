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

"""Paged and malformed responses of a cloud's services."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud.api import connection

NOVA = '2.61'
"""Microversion of Nova's API. A flavor has its description (2.55) and extra
specs (2.61), and so has the flavor in a server (2.47)."""
_PAGE = 1000
"""The default of Nova's ``[api] max_limit``."""


@contextlib.contextmanager
def understanding(cloud: connection.Cloud, service: str, what: str
                  ) -> Iterator[None]:
    """Report a response that does not have the expected structure.

    :raises CloudError: instead of the exception, such as KeyError, that such
        a response causes.
    """
    try:
        yield
    except exception.GpuDriverError:
        raise
    except (KeyError, IndexError, TypeError, AttributeError,
            ValueError) as error:
        raise cloud.error(
            f'{what} in {service} cannot be parsed, or the service at this '
            f'URL is not {service}: {error!r}') from error


def complete(cloud: connection.Cloud, path: str, key: str, **query: str
             ) -> list[dict[str, Any]]:
    """Return all items of a Keystone list.

    Keystone can limit its lists, which have no further pages then.

    :param path: such as ``/limits``.
    :param key: the key of the list in the response.
    :raises CloudError: if there is no such list, or Keystone does not list
        all items.
    """
    answer = cloud.ask('identity', path, **query)
    with understanding(cloud, 'Keystone', path):
        if answer.get('truncated'):
            raise cloud.error(f'Keystone lists only some {key} (list_limit in '
                              'keystone.conf)')
        return list(answer[key])


def reason(error: exception.CloudError) -> str:
    """Return the reason of an error, without the name of the cloud."""
    return str(error.kwargs['reason'])


def pages(cloud: connection.Cloud, path: str, key: str, **query: str
          ) -> list[dict[str, Any]]:
    """Return all items of a Nova list, from all its pages.

    :param path: such as ``/servers``.
    :param key: the key of the list in the response.
    :raises CloudError: if there is no such list.
    """
    return list(each(cloud, path, key, **query))


def each(cloud: connection.Cloud, path: str, key: str, **query: str
         ) -> Iterator[dict[str, Any]]:
    """Like :func:`pages`, but keep only one page at a time in memory."""
    while True:
        answer = cloud.ask('compute', path, NOVA,
                           **{'limit': str(_PAGE), **query})
        with understanding(cloud, 'Nova', path):
            page = [{**item, 'id': item['id']} for item in answer[key]]
            more = f'{key}_links' in answer
        yield from page
        if not page or not more:
            return
        query['marker'] = page[-1]['id']
