# SPDX-License-Identifier: Apache-2.0


"""Clients of the public HTTP APIs of Placement and Cyborg."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import requests

PLACEMENT_VERSION = '1.39'
CYBORG_VERSION = '2.3'
PROJECT = '7a9b6c0e4a0f4d4c9b5d0c1d1f6f2a11'
USER = 'c3a2b1d0e4f54a7b8c9d0e1f2a3b4c5d'


class ApiError(Exception):
    """An API refused a request.

    ``status`` is the HTTP status, ``text`` the body.
    """

    def __init__(self, response):
        self.status = response.status_code
        self.text = response.text
        super().__init__('%s %s: HTTP %d: %s' % (
            response.request.method, response.url, self.status, self.text))


class Api:
    """JSON over HTTP at ``url``, with ``headers`` in every request."""

    def __init__(self, url: str, headers: Mapping[str, str]):
        self.url = url
        self._headers = dict(headers)
        self._of_thread = threading.local()

    def request(self, method: str, path: str, body=None, params=None):
        """Send a request; return the answer's JSON, None without a body.

        Thread-safe.

        :raises ApiError: if the status is 400 or above.
        """
        response = self._session().request(
            method, self.url + path, json=body, params=params,
            headers=self._headers, timeout=120)
        if response.status_code >= 400:
            raise ApiError(response)
        return response.json() if response.content else None

    def _session(self):
        """Return the thread's session: a new one is slower than a request."""
        session = getattr(self._of_thread, 'session', None)
        if session is None:
            session = self._of_thread.session = requests.Session()
            # The services are on loopback; do not use a proxy.
            session.trust_env = False
        return session

    def get(self, path, **params):
        return self.request('GET', path, params=params)

    def post(self, path, body):
        return self.request('POST', path, body)

    def put(self, path, body=None):
        return self.request('PUT', path, body)

    def patch(self, path, body):
        return self.request('PATCH', path, body)

    def delete(self, path, **params):
        return self.request('DELETE', path, params=params)


class Placement(Api):
    """Placement, for an administrator."""

    def __init__(self, url: str):
        super().__init__(url, {
            'X-Auth-Token': 'admin',
            'OpenStack-API-Version': 'placement ' + PLACEMENT_VERSION})

    def providers(self, root: str | None = None) -> dict[str, dict]:
        """Return providers by name; with ``root`` only those of its tree."""
        params = {'in_tree': root} if root else {}
        listed = self.get('/resource_providers', **params)
        return {provider['name']: provider
                for provider in listed['resource_providers']}

    def inventories(self, provider: str) -> dict[str, dict]:
        """Return a provider's inventories by resource class."""
        return self.get(
            f'/resource_providers/{provider}/inventories')['inventories']

    def usages(self, provider: str) -> dict[str, int]:
        return self.get(f'/resource_providers/{provider}/usages')['usages']

    def traits(self, provider: str) -> list[str]:
        return sorted(
            self.get(f'/resource_providers/{provider}/traits')['traits'])

    def snapshot(self) -> dict[str, dict]:
        """Return everything about every provider, by name, for comparison.

        Generations are left out, because they count writes.
        """
        return {
            name: {'uuid': provider['uuid'],
                   'parent': provider['parent_provider_uuid'],
                   'inventories': self.inventories(provider['uuid']),
                   'usages': self.usages(provider['uuid']),
                   'traits': self.traits(provider['uuid'])}
            for name, provider in self.providers().items()}


class Cyborg(Api):
    """Cyborg's API as Nova calls it.

    Nova sends an administrator's token and its own service token.
    """

    def __init__(self, url: str):
        super().__init__(url + '/v2', {
            'X-User-Id': USER, 'X-Project-Id': PROJECT,
            'X-Roles': 'admin,member,reader,service',
            'X-Service-Roles': 'service',
            'OpenStack-API-Version': 'accelerator ' + CYBORG_VERSION})

    def create_device_profile(self, name: str, *groups: Mapping[str, str]
                              ) -> dict:
        return self.post('/device_profiles',
                         [{'name': name, 'groups': list(groups)}])

    def delete_device_profile(self, name: str) -> None:
        self.delete('/device_profiles', value=name)

    def device_profile(self, name: str) -> dict:
        """Return a device profile.

        :raises KeyError: if no device profile has that name.
        """
        listed = self.get('/device_profiles', name=name)['device_profiles']
        if not listed:
            raise KeyError(name)
        return listed[0]

    def devices(self) -> list[dict]:
        return self.get('/devices')['devices']

    def deployables(self) -> list[dict]:
        return self.get('/deployables')['deployables']

    def create_arqs(self, device_profile: str) -> list[dict]:
        return self.post('/accelerator_requests', {
            'device_profile_name': device_profile})['arqs']

    def arq(self, uuid: str) -> dict:
        return self.get(f'/accelerator_requests/{uuid}')

    def arqs(self, instance: str | None = None) -> list[dict]:
        params = {'instance': instance} if instance else {}
        return self.get('/accelerator_requests', **params)['arqs']

    def bind(self, bindings: Mapping[str, Mapping[str, str]]) -> None:
        """Bind ARQs.

        :param bindings: by the UUID of each ARQ, its ``hostname``,
            ``device_rp_uuid`` and ``instance_uuid``.
        """
        self.patch('/accelerator_requests', {
            uuid: [{'path': f'/{field}', 'op': 'add', 'value': value}
                   for field, value in fields.items()]
            for uuid, fields in bindings.items()})

    def delete_arqs(self, *, instance: str | None = None,
                    uuids: list[str] | None = None) -> None:
        """Unbind and delete ARQs, by instance (as Nova does) or by UUID."""
        if instance is not None:
            self.delete('/accelerator_requests', instance=instance)
        else:
            self.delete('/accelerator_requests', arqs=','.join(uuids))
