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

"""Read this host's providers from Placement."""

from __future__ import annotations

import math
import time
import urllib.parse
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver import exception

VERSION = '1.26'
"""The first version that takes and shows ``reserved`` equal to ``total``."""
_TREE_VERSION = '1.14'
"""The first version with ``in_tree``."""
_MEMBERS = 8
"""How many providers to try to find the tree: some may be missing."""


class ProviderTree:
    """The tree of providers below the compute node.

    :param client: makes Cyborg's placement client or a similar one. Called
        once, at the first use: each new client logs in to keystone.
    """

    def __init__(self, client: Callable[[], Any]):
        self._make_client = client
        self._client = None
        self._root: str | None = None
        self._latency = math.inf

    @property
    def latency(self) -> float:
        """Seconds of the fastest answer so far; inf before the first.

        The fastest answer depends least on how busy this process was.
        """
        return self._latency

    @property
    def client(self) -> Any:
        """The client, for writes."""
        if self._client is None:
            self._client = self._make_client()
        return self._client

    def get(self, url: str, version: str = VERSION) -> Any:
        """The body of a response; None for status 404.

        :raises PlacementRefused: for any other status than 200 and 404.
        :raises Exception: what the client raises.
        """
        client, begun = self.client, time.monotonic()
        response = client.get(url, version=version)
        self._latency = min(self._latency, time.monotonic() - begun)
        if response.status_code == 404:
            return None
        if response.status_code != 200:
            raise exception.PlacementRefused(
                what=f'GET {url}', code=response.status_code,
                text=response.text)
        return response.json()

    def members(self, provider: str) -> list[dict[str, Any]]:
        """All providers in the tree of a provider (UUID)."""
        return self.get(f'/resource_providers?in_tree={provider}',
                        _TREE_VERSION)['resource_providers']

    def of_host(self, hostname: str) -> list[dict[str, Any]]:
        """All providers in the tree of a compute node; empty if it has none.

        :param hostname: name of the compute node's provider.
        """
        name = urllib.parse.quote(hostname, safe='')
        roots = self.get(f'/resource_providers?name={name}'
                         )['resource_providers']
        return self.members(roots[0]['uuid']) if roots else []

    def generations(self, providers: Sequence[str]) -> dict[str, int]:
        """Generation of each provider of this host's tree, in one request.

        Any member finds the tree: the root once it is known, and one of
        ``providers`` before that. Some of those may be missing.

        :param providers: UUIDs of the driver's own providers.
        :raises Exception: what the client raises.
        """
        for member in ([self._root] if self._root else providers[:_MEMBERS]):
            tree = self.members(member)
            if tree:
                self._root = tree[0]['root_provider_uuid']
                return {item['uuid']: item['generation'] for item in tree}
        self._root = None
        return {}
