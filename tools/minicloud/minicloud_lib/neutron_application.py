# SPDX-License-Identifier: Apache-2.0

"""An empty Neutron: every list is empty, and nothing can be created.

Nova asks for the ports of a server whenever it shows, lists or deletes the
server, even if the server has no network.
"""

from __future__ import annotations

import json
import re

_VERSION = {'id': 'v2.0', 'status': 'CURRENT'}
_LIST = re.compile('/v2[.]0/([a-z-]+)')


def application(environ, start_response):
    """Answer as the Networking API v2.0 does for a project with nothing."""
    path = environ.get('PATH_INFO', '').rstrip('/').removesuffix('.json')
    method = environ['REQUEST_METHOD']
    found = _LIST.fullmatch(path)
    if not path:
        link = {'rel': 'self', 'href': _root(environ) + '/v2.0/'}
        return _answer(start_response, '200 OK',
                       {'versions': [{**_VERSION, 'links': [link]}]})
    if path == '/v2.0':
        return _answer(start_response, '200 OK', {'resources': []})
    if method == 'GET' and found is not None:
        return _answer(start_response, '200 OK',
                       {found[1].replace('-', '_'): []})
    if method == 'GET':
        return _problem(start_response, '404 Not Found', 'There is none')
    return _problem(start_response, '403 Forbidden',
                    'This cloud has no networks')


def _root(environ):
    return f'{environ["wsgi.url_scheme"]}://{environ["HTTP_HOST"]}'


def _problem(start_response, status, message):
    return _answer(start_response, status, {'NeutronError': {
        'type': 'Minicloud', 'message': message, 'detail': ''}})


def _answer(start_response, status, document):
    body = json.dumps(document).encode()
    start_response(status, [('Content-Type', 'application/json'),
                            ('Content-Length', str(len(body)))])
    return [body]
