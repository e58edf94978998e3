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
