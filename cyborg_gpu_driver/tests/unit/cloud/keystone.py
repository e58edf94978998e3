# SPDX-License-Identifier: Apache-2.0

"""A Keystone that accepts every user, and a service behind it."""

from __future__ import annotations

import json
import os

import fixtures
from keystoneauth1 import fixture
from keystoneauth1 import loading

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.conf import gpu as gpu_conf
from demo_lib import httpd

TOKEN = 'admin'
"""The token that Placement without Keystone accepts for an administrator."""
PROJECT = '7a9b6c0e4a0f4d4c9b5d0c1d1f6f2a11'
_USER = {'auth_type': 'password', 'username': 'operator', 'password': 'x',
         'project_name': 'admin', 'user_domain_name': 'Default',
         'project_domain_name': 'Default'}


class Keystone:
    """A Keystone that gives every user the same token.

    :param roles: roles of the user.
    :param catalog: the URL of each service by its type, which is its ID too.
    :param regions: of each service.
    """

    def __init__(self, roles, catalog, regions=('one',)):
        self.roles = roles
        self.catalog = catalog
        self.regions = regions

    def __call__(self, environ, start_response):
        if environ['REQUEST_METHOD'] == 'POST':
            token = fixture.V3Token()
            token.set_project_scope(id=PROJECT, name='own')
            for role in self.roles:
                token.add_role(role)
            for kind, url in self.catalog.items():
                service = token.add_service(kind, id=kind)
                for region in self.regions:
                    service.add_standard_endpoints(public=url, region=region)
            return _answer(start_response, '201 Created', token,
                           ('X-Subject-Token', TOKEN))
        return _answer(start_response, '200 OK', {
            'version': fixture.V3Discovery(
                f'http://{environ["HTTP_HOST"]}/v3')})


class KeystoneFixture(fixtures.Fixture):
    """An environment whose variables name a cloud of Keystone and Cyborg.

    Cyborg receives the user's identity as from Keystone's middleware.

    :param application: the WSGI application of Cyborg.
    :param roles: roles of the user.
    :param path: path of Cyborg's endpoint.
    :param others: URLs of further services by their types.
    """

    def __init__(self, application, roles=('admin',), path='/v2',
                 others=None):
        super().__init__()
        self._application = application
        self._roles = roles
        self._path = path
        self._others = others or {}

    def _setUp(self):
        forget_clouds(self)
        self._service = self._serve(self._behind(self._application))
        self.auth_url = self._serve(Keystone(
            self._roles, {'accelerator': self._service + self._path,
                          **self._others})) + '/v3'
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.name('OS_AUTH_URL', self.auth_url)
        for name, value in _USER.items():
            self.name(f'OS_{name.upper()}', value)

    def name(self, variable, value=None):
        """Set or unset an environment variable."""
        self.useFixture(fixtures.EnvironmentVariable(variable, value))

    def write_clouds(self, **clouds):
        """Write these clouds to clouds.yaml and clear the environment.

        :param clouds: the Keystone URL of each cloud by its name.
        """
        path = os.path.join(self.directory, 'clouds.yaml')
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump({'clouds': {name: {
                'auth_type': 'password', 'auth': {
                    'auth_url': url, **{
                        key: value for key, value in _USER.items()
                        if key != 'auth_type'}}}
                for name, url in clouds.items()}}, stream)
        forget_clouds(self)
        self.name('OS_CLIENT_CONFIG_FILE', path)

    def log_in(self, conf, url=None):
        """Write the user to ``[gpu_cloud]`` of an agent."""
        connection.register_opts(conf)
        # Another test's configuration would need the URL, too.
        self.addCleanup(conf._groups.pop, gpu_conf.CLOUD, None)
        conf.register_opts(loading.get_auth_plugin_conf_options('password'),
                           gpu_conf.CLOUD)
        for name, value in {**_USER, 'auth_url': url or self.auth_url
                            }.items():
            conf.set_override(name, value, gpu_conf.CLOUD)

    def _serve(self, application):
        server = httpd.Httpd(application)
        self.addCleanup(server.stop)
        return server.url

    def _behind(self, application):
        """Pass the user to a service, as Keystone's middleware does."""
        def answer(environ, start_response):
            if environ.get('HTTP_X_AUTH_TOKEN') != TOKEN:
                return _answer(start_response, '401 Unauthorized', {})
            told = dict(environ, HTTP_X_ROLES=','.join(self._roles),
                        HTTP_X_PROJECT_ID=PROJECT, HTTP_X_USER_ID='operator')
            if environ.get('HTTP_X_SERVICE_TOKEN') == TOKEN:
                told['HTTP_X_SERVICE_ROLES'] = ','.join(self._roles)
            return application(told, start_response)
        return answer


def forget_clouds(case):
    """Unset the variables that name a cloud for a test or fixture."""
    for name in ('OS_CLOUD', 'OS_AUTH_URL',
                 *(f'OS_{key.upper()}' for key in _USER)):
        case.useFixture(fixtures.EnvironmentVariable(name))


def _answer(start_response, status, document, *headers):
    start_response(status, [('Content-Type', 'application/json'), *headers])
    return [json.dumps(document).encode()]
