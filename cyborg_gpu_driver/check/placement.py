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

"""Queries to Placement, made in the same way as cyborg-agent makes them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import sys
import urllib.parse
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

from keystoneauth1 import exceptions
from oslo_config import cfg
from oslo_utils import importutils
from oslo_utils import strutils

from cyborg_gpu_driver import schema
from cyborg_gpu_driver.check.rules import access
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.report import earlier
from cyborg_gpu_driver.report import publishing

_NO_GPUS = model.Host()
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
    earlier: tuple[reconcile.Earlier, ...] = ()
    """The GPUs that servers have through Cyborg's in-tree driver."""
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


def ask(make_client: Callable[[], Any], names: Collection[str],
        host: model.Host = _NO_GPUS) -> Answer:
    """Query which names have a provider, and which servers have GPUs.

    Never raises, because Keystone and Placement can fail in any way.

    :param make_client: creates the client; see :func:`client`.
    :param names: the names to look for.
    :param host: the host with its GPUs.
    """
    try:
        with _silence():
            return _ask(make_client(), names, host)
    except Exception as error:
        return _failed(error)


def _ask(asked, names, host):
    found, tree = set(), publishing.ProviderTree(lambda: asked)
    for name in sorted(names):
        response = asked.get('/resource_providers?name='
                             + urllib.parse.quote(name, safe=''))
        if response.status_code != 200:
            return _refused(response.status_code)
        if response.json()['resource_providers']:
            found.add(name)
    return Answer(frozenset(found), tuple(
        item for name in sorted(found)
        for item in earlier.read(tree, name, host)))


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


# Facts about another host, for the check of live migration to that host.
#
# ``cyborg-gpu check --peer-facts`` writes them as a JSON document on the other
# host, and ``cyborg-gpu check --peer FILE`` reads the document on this host.

VERSION = 1
STANDARD_INPUT = '-'
_MOST_GPUS = 64
_SIZE_MAX = 1 << 20
"""The most characters that a document may have."""
_LINE = schema.matching('[ -~]{1,255}', 'a line of text')
_TYPE = schema.matching(r'[A-Za-z0-9.+_-]{1,64}', 'a vGPU type', 'L40S-12Q')
_ADDRESS = schema.matching(
    r'[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]', 'a PCI address',
    '0000:16:00.0')
_SCHEMA = schema.mapping({
    'version': {'const': VERSION},
    'host': schema.matching(r'[A-Za-z0-9._-]{1,255}', 'a host name', 'gpu1'),
    'driver': schema.nullable(schema.matching(
        r'[0-9]{1,8}(?:\.[0-9]{1,8}){1,3}', 'a driver version',
        '580.65.06')),
    'gpus': schema.listing(schema.mapping({
        'address': _ADDRESS,
        'model': schema.nullable(_LINE),
        'types': schema.listing(_TYPE, least=1, most=_MOST_GPUS),
        'mig': schema.TRUTH,
        'mixed_sizes': schema.nullable(schema.TRUTH),
        'ecc': schema.nullable(schema.TRUTH),
        'supported': schema.nullable(schema.TRUTH),
        'metadata': schema.nullable(_LINE),
    }), most=_MOST_GPUS)})


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU whose vGPUs Nova assigns; None means that a fact is unknown."""

    address: str
    model: str | None
    """The name from nvmlDeviceGetName."""
    types: tuple[str, ...]
    """The types of its fixed vGPUs, each type once."""
    mig: bool
    """Whether MIG mode is on."""
    mixed_sizes: bool | None
    """Whether mixed-size mode is on; None if the GPU has no such mode."""
    ecc: bool | None
    supported: bool | None
    """Whether NVML reports that its vGPUs can migrate."""
    metadata: str | None
    """As in :class:`cyborg_gpu_driver.host.snapshot.domain.Migration`.
    """


@dataclasses.dataclass(frozen=True)
class Peer:
    """A host that servers may migrate to or from."""

    host: str
    driver: str | None
    """Version of NVIDIA's driver."""
    gpus: tuple[Gpu, ...]

    def dump(self) -> str:
        """Return the JSON document."""
        return json.dumps({'version': VERSION, **dataclasses.asdict(self)},
                          indent=2) + '\n'


def read_peers(path: str) -> Peer:
    """Read a document that ``--peer-facts`` wrote.

    :param path: the path of its file; ``-`` is standard input.
    :raises DocumentError: if it cannot be read or has another format.
    """
    place = schema.Place('standard input' if path == STANDARD_INPUT
                         else path)
    try:
        content = json.loads(_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise place.error(
            str(error), 'expected what "cyborg-gpu check --peer-facts" '
            'writes on the other host') from error
    schema.check(content, _SCHEMA, place)
    return _peer(content)


def _text(path: str) -> str:
    if path == STANDARD_INPUT:
        text = sys.stdin.read(_SIZE_MAX + 1)
    else:
        with open(path, encoding='utf-8') as stream:
            text = stream.read(_SIZE_MAX + 1)
    if len(text) > _SIZE_MAX:
        raise ValueError(f'more than {_SIZE_MAX} characters')
    return text


def _peer(content: dict[str, Any]) -> Peer:
    return Peer(content['host'], content['driver'], tuple(
        Gpu(**{**gpu, 'types': tuple(gpu['types'])})
        for gpu in content['gpus']))


# The services that run on this machine, read from procfs.

STOCK = 'nova-compute'
OURS = 'cyborg-gpu-nova-compute'
AGENT = 'cyborg-agent'
API = 'cyborg-api'
_LIMIT = 1 << 16


@dataclasses.dataclass(frozen=True)
class Running:
    """The services that were found."""

    commands: frozenset[str] = frozenset()
    agent: access.User | None = None
    """The user that cyborg-agent runs as; None if no agent was found."""

    @property
    def nova_commands(self) -> frozenset[str]:
        """The names under which nova-compute runs."""
        return self.commands & {STOCK, OURS}


def running(proc: str = '/proc') -> Running | None:
    """Return the services that run on this machine.

    :param proc: where procfs is mounted.
    :returns: None if processes cannot be listed.
    """
    try:
        names = os.listdir(proc)
    except OSError:
        return None
    found: dict[str, str] = {}
    for name in sorted(filter(str.isdigit, names), key=int):
        command = _command(f'{proc}/{name}/cmdline')
        if command in (STOCK, OURS, AGENT, API):
            found.setdefault(command, f'{proc}/{name}/status')
    return Running(frozenset(found),
                   _user(found[AGENT]) if AGENT in found else None)


def _command(path):
    """Return the name of the program, or of the script that Python runs."""
    words = _read(path).split('\0')
    name = os.path.basename(words[0])
    if name.startswith('python'):
        scripts = (word for word in words[1:] if not word.startswith('-'))
        name = os.path.basename(next(scripts, ''))
    return name


def _user(path):
    """Return the effective user and all groups; None if the process ended."""
    fields = {
        line.partition(':')[0]: line.partition(':')[2].split()
        for line in _read(path).splitlines()}
    try:
        return access.User(
            uid=int(fields['Uid'][1]),
            gids=frozenset(map(int, (fields['Gid'][1], *fields['Groups']))))
    except (KeyError, IndexError, ValueError):
        return None


def _read(path):
    try:
        with open(path, 'rb') as stream:
            return stream.read(_LIMIT).decode(errors='replace')
    except OSError:
        # The process has ended, or this user may not read the file.
        return ''
