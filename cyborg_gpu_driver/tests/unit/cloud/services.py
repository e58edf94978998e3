# SPDX-License-Identifier: Apache-2.0
"""A Keystone and any services behind it."""

from __future__ import annotations

import json

import requests
from openstack import connection as sdk

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.cloud import keystone

_PATHS = {'accelerator': '/v2', 'baremetal': '', 'compute': '/v2.1',
          'placement': '', 'identity': '/v3'}
"""The path of each service's endpoint on its server."""
_FORWARDED = {'Content-Type': 'CONTENT_TYPE', 'Accept': 'HTTP_ACCEPT',
              'OpenStack-API-Version': 'HTTP_OPENSTACK_API_VERSION'}


class Services(keystone.KeystoneFixture):
    """A cloud that consists of the given services.

    :param applications: WSGI applications by the types of the services.
    :param roles: roles of the user, and of a service token.
    :ivar regions: of each service.
    """

    def __init__(self, applications, roles=('admin',)):
        super().__init__(None, roles)
        self._applications = applications
        self.regions = ['one']

    def _setUp(self):
        keystone.forget_clouds(self)
        self.urls = {
            kind: self._serve(self._behind(application)) + _PATHS[kind]
            for kind, application in self._applications.items()}
        self.auth_url = self._serve(keystone.Keystone(
            self._roles, self.urls, self.regions)) + '/v3'

    @property
    def cloud(self):
        """A client of this cloud."""
        made = sdk.Connection(
            auth_type='password', api_timeout=60, auth={
                'auth_url': self.auth_url, 'username': 'operator',
                'password': 'x', 'project_name': 'admin',
                'user_domain_name': 'Default',
                'project_domain_name': 'Default'})
        return connection.Cloud(made, 'here')


def documents(answers, version=None):
    """A service that answers with JSON documents.

    :param answers: documents by path, or callables that return a document
        for a query string. Other paths are answered with 404.
    :param version: the version document that the service returns.
    """
    def answer(environ, start_response):
        path = environ['PATH_INFO']
        found = answers.get(path)
        if found is None and version and path in ('/', '/v2.1', '/v2.1/',
                                                  '/v3', '/v3/'):
            found = {'version': {**version, 'links': [{
                'rel': 'self',
                'href': f'http://{environ["HTTP_HOST"]}{path}'}]}}
        if callable(found):
            found = found(environ['QUERY_STRING'])
        start_response('404 Not Found' if found is None else '200 OK',
                       [('Content-Type', 'application/json')])
        return [json.dumps(found or {}).encode()]
    return answer


def forwarded(url, token):
    """A service that forwards to a running service, which knows one token.

    :param url: root URL of the running service.
    :param token: the token that the running service accepts.
    """
    def answer(environ, start_response):
        query = environ['QUERY_STRING']
        length = int(environ.get('CONTENT_LENGTH') or 0)
        given = requests.request(
            environ['REQUEST_METHOD'], url + environ['PATH_INFO']
            + (f'?{query}' if query else ''),
            data=environ['wsgi.input'].read(length) if length else None,
            headers={'X-Auth-Token': token, **{
                name: environ[key] for name, key in _FORWARDED.items()
                if environ.get(key)}}, timeout=scope.HANG)
        start_response(f'{given.status_code} {given.reason}', [
            ('Content-Type', given.headers.get('Content-Type', 'text/plain'))
        ])
        return [given.content]
    return answer


NOVA = {'id': 'v2.1', 'status': 'CURRENT', 'version': '2.100',
        'min_version': '2.1'}
"""The version document of Nova."""
KEYSTONE = {'id': 'v3.14', 'status': 'stable'}
CYBORG = {'id': 'v2.0', 'status': 'CURRENT'}
PLACEMENT = {'versions': [{
    'id': 'v1.0', 'status': 'CURRENT', 'min_version': '1.0',
    'max_version': '1.39', 'links': [{'rel': 'self', 'href': ''}]}]}
"""Placement returns a list of versions at its root."""
