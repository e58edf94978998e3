# SPDX-License-Identifier: Apache-2.0

"""An empty Placement, for tests that need no resource providers."""

from __future__ import annotations

import requests


class EmptyPlacement:
    """A Placement client that finds no provider and can write none."""

    def get(self, url, version=None):
        response = requests.Response()
        response.status_code = 404
        if url.startswith('/resource_providers?'):
            response.status_code = 200
            response._content = b'{"resource_providers": []}'
        return response

    def put(self, url, body, version=None):
        raise ConnectionError('nothing can be written here')
