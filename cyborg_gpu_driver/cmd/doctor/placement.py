# SPDX-License-Identifier: Apache-2.0

"""Queries to Placement, with the credentials of cyborg-agent."""

from __future__ import annotations

import dataclasses
import logging
import re
import urllib.parse
from collections.abc import Collection

from keystoneauth1 import exceptions
from oslo_config import cfg
from oslo_utils import strutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import placement_client

_USER_IN_URL = re.compile('//[^/@ ]*@')
_VERSION = '1.0'
"""Placement's first microversion can find a provider by its name."""

_ADVICE = (
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
    ((exception.CloudError, exceptions.AuthPluginException, cfg.Error),
     'Set auth_type and the options that it needs in [placement] of '
     'cyborg.conf'),
)
"""By the cause of the error."""
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


def ask(conf: cfg.ConfigOpts, names: Collection[str]) -> Answer:
    """Query which names have a provider, by the options of cyborg.conf.

    Never raises, because Keystone and Placement can fail in any way.
    """
    before = logging.root.manager.disable
    # keystoneauth logs URLs that may have a password.
    logging.disable(logging.CRITICAL)
    try:
        return _ask(placement_client.Placement(conf), names)
    except Exception as error:
        advice = next((advice for kind, advice in _ADVICE
                       if isinstance(error.__cause__ or error, kind)),
                      _OTHERWISE)
        said = _USER_IN_URL.sub('//***@', strutils.mask_password(str(error)))
        return Answer(problem='Placement cannot be queried: '
                      f'{type(error).__name__}: {said}'.rstrip(': '),
                      advice=advice)
    finally:
        logging.disable(before)


def _ask(client: placement_client.Placement, names: Collection[str]
         ) -> Answer:
    found = set()
    for name in sorted(names):
        response = client.get('/resource_providers?name='
                              + urllib.parse.quote(name, safe=''), _VERSION)
        if response.status_code != 200:
            return Answer(
                problem='Placement answers with HTTP '
                        f'{response.status_code}',
                advice=_STATUS.get(response.status_code, _OTHERWISE))
        if response.json()['resource_providers']:
            found.add(name)
    return Answer(frozenset(found))
