# SPDX-License-Identifier: Apache-2.0

"""Queries to Placement, made in the same way as cyborg-agent makes them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import urllib.parse
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

from keystoneauth1 import exceptions
from oslo_config import cfg
from oslo_utils import importutils
from oslo_utils import strutils

_TIMEOUT = 30
"""Seconds to wait for one answer if ``cyborg.conf`` sets no timeout."""
_USER_IN_URL = re.compile('//[^/@ ]*@')

_ADVICE = (
    (cfg.RequiredOptError,
     'Set the missing credentials in [placement] of cyborg.conf'),
    (exceptions.AuthPluginException,
     'Set auth_type and the options that it needs in [placement] of '
     'cyborg.conf'),
    (exceptions.Unauthorized,
     'Correct username, password, project and domains in [placement] of '
     'cyborg.conf'),
    (exceptions.CatalogException,
     'Correct region_name and valid_interfaces in [placement] of '
     'cyborg.conf, or the service catalogue'),
    (exceptions.DiscoveryFailure,
     'Correct endpoint_override in [placement] of cyborg.conf, or the service '
     'catalogue; if it is correct, check that Placement is running'),
    (exceptions.SSLError,
     'Set cafile in [placement] of cyborg.conf to the CA that signed the '
     'certificate'),
    (exceptions.ConnectionError,
     'Check that this host can reach this address. It comes from auth_url in '
     '[placement] of cyborg.conf or from the service catalogue'),
)
_OTHERWISE = 'Correct [placement] in cyborg.conf, then check Placement'
_STATUS = {
    401: 'Placement rejects the token: check [keystone_authtoken] in '
         'placement.conf',
    403: 'Give the user in [placement] of cyborg.conf the role service or '
         'admin in the project that is set there',
    404: 'Correct endpoint_override in [placement] of cyborg.conf, or the '
         'service catalogue: the service at this URL is not Placement',
}


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outcome of the queries to Placement."""

    providers: frozenset[str] = frozenset()
    """The requested names for which a resource provider exists."""
    problem: str = ''
    """Why there is no answer; never contains a secret."""
    advice: str = ''


def client(files: Sequence[str]) -> Any:
    """Return Cyborg's Placement client with the agent's configuration.

    :param files: the files of ``cyborg.conf``.
    :raises ImportError: if this Cyborg has no Placement client.
    """
    module = importutils.import_module('cyborg.common.placement_client')
    conf = importutils.import_module('cyborg.conf').CONF
    conf([], project='cyborg', default_config_files=list(files),
         default_config_dirs=[])
    if conf.placement.timeout is None:
        conf.set_override('timeout', _TIMEOUT, group='placement')
    return module.PlacementClient()


def ask(make_client: Callable[[], Any], names: Collection[str]) -> Answer:
    """Query which names have a provider.

    Never raises, because Keystone and Placement can fail in any way.

    :param make_client: creates the client; see :func:`client`.
    :param names: the names to look for.
    """
    try:
        with _silence():
            return _ask(make_client(), names)
    except Exception as error:
        return _failed(error)


def _ask(asked: Any, names: Collection[str]) -> Answer:
    found = set()
    for name in sorted(names):
        response = asked.get('/resource_providers?name='
                             + urllib.parse.quote(name, safe=''))
        if response.status_code != 200:
            return _refused(response.status_code)
        if response.json()['resource_providers']:
            found.add(name)
    return Answer(frozenset(found))


@contextlib.contextmanager
def _silence():
    """Disable logging: keystoneauth logs URLs that may have a password."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _refused(code):
    return Answer(problem=f'Placement answers with HTTP {code}',
                  advice=_STATUS.get(code, _OTHERWISE))


def _failed(error):
    advice = next((advice for kind, advice in _ADVICE
                   if isinstance(error, kind)), _OTHERWISE)
    said = _USER_IN_URL.sub('//***@', strutils.mask_password(str(error)))
    return Answer(problem='Placement cannot be queried: '
                  f'{type(error).__name__}: {said}'.rstrip(': '),
                  advice=advice)
