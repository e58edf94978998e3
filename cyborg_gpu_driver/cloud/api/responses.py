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

"""Long answers of a cloud's services, and answers that are none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud.api import connection

_PAGE = 1000
"""Nova's own ``[api] max_limit``, unless it is configured otherwise."""


@contextlib.contextmanager
def understanding(cloud: connection.Cloud, service: str, what: str
                  ) -> Iterator[None]:
    """Say so if an answer has not the shape that it should have.

    :raises CloudError: in place of what Python says of such an answer.
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


def reason(error: exception.CloudError) -> str:
    """What went wrong, without the name of the cloud."""
    return str(error.kwargs['reason'])


def pages(cloud: connection.Cloud, path: str, key: str, version: str,
          **query: str) -> list[dict[str, Any]]:
    """A list of Nova's, all its pages.

    :param path: such as ``/servers``.
    :param key: what the answer's list is called.
    :raises CloudError: if there is none.
    """
    return list(each(cloud, path, key, version, **query))


def each(cloud: connection.Cloud, path: str, key: str, version: str,
         **query: str) -> Iterator[dict[str, Any]]:
    """As :func:`pages`, with one page in memory at a time."""
    while True:
        answer = cloud.ask('compute', path, version,
                           **{'limit': str(_PAGE), **query})
        with understanding(cloud, 'Nova', path):
            page = [{**item, 'id': item['id']} for item in answer[key]]
            more = f'{key}_links' in answer
        yield from page
        if not page or not more:
            return
        query['marker'] = page[-1]['id']
