# SPDX-License-Identifier: Apache-2.0

"""The settings of one cloud: its directory, ports, passwords and hosts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import secrets
import socket

from minicloud_lib import error

FILE = 'minicloud.json'
FORMAT = 1
ADDRESS = '127.0.0.1'
PORTS = ('keystone', 'placement', 'nova', 'cyborg', 'glance', 'neutron',
         'mariadb', 'rabbitmq', 'epmd', 'rabbitmq-nodes', 'ironic')
"""The listeners, in the order of their ports from the base port on."""
# Below the ports that Linux uses for outgoing connections (32768 to 60999).
_FIRST, _LAST, _STEP = 24000, 32000, 20


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a cloud, kept in ``FILE`` from first start to wipe.

    ``hosts`` has the simulated machine of each compute host, as ``[gpu]
    simulate`` takes it. ``gpu_config`` is a file with ``[gpu]`` and policies
    for all hosts. ``baremetal`` is whether the cloud has Ironic.
    ``report_interval`` is the time in seconds between the reports of a
    cyborg-agent.
    """

    directory: pathlib.Path
    base_port: int
    hosts: dict[str, str]
    gpu_config: str
    secret: str
    baremetal: bool = False
    report_interval: int = 60

    def port(self, name: str) -> int:
        return self.base_port + PORTS.index(name)

    def url(self, name: str) -> str:
        """Return the URL of an API, without a trailing slash."""
        return f'http://{ADDRESS}:{self.port(name)}'

    def password(self, user: str) -> str:
        """Return the password of a keystone, database or broker user."""
        return hashlib.sha256(
            f'{self.secret} {user}'.encode()).hexdigest()[:20]

    def etc(self, *names: str) -> pathlib.Path:
        """Return a path below the configuration directory."""
        return self.directory.joinpath('etc', *names)

    def data(self, *names: str) -> pathlib.Path:
        """Return a path below the data directory of the services."""
        return self.directory.joinpath('data', *names)

    def log(self, name: str) -> pathlib.Path:
        return self.directory / 'log' / f'{name}.log'

    def pid_file(self, name: str) -> pathlib.Path:
        return self.directory / 'run' / f'{name}.pid'

    def done(self, step: str) -> pathlib.Path:
        """Return the mark file of a step that is done once per cloud."""
        return self.directory / 'done' / step

    def save(self) -> None:
        """Create the cloud's directory with its folders and ``FILE``."""
        for name in ('etc', 'data', 'log', 'run', 'done', 'tmp'):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        values = dataclasses.asdict(self)
        del values['directory']
        (self.directory / FILE).write_text(
            json.dumps({'format': FORMAT, **values}, indent=2) + '\n',
            encoding='utf-8')


def load(directory: pathlib.Path) -> Settings | None:
    """Return the settings of the cloud in a directory, None if there is none.

    :raises MinicloudError: if the directory has other files, or ``FILE``
        cannot be read.
    """
    path = directory / FILE
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
        if values.pop('format') != FORMAT:
            raise ValueError('of another release of minicloud')
        return Settings(directory=directory, **values)
    except FileNotFoundError:
        if directory.exists() and any(directory.iterdir()):
            raise error.MinicloudError(
                f'{directory} has files, but no minicloud: give an empty '
                'directory, or one that is not there yet') from None
        return None
    except (OSError, ValueError, TypeError, KeyError,
            AttributeError) as problem:
        raise error.MinicloudError(
            f'{path} is not the file of a minicloud ({problem}); if nothing '
            f'of it runs any more, remove {directory}') from problem


def new(directory: pathlib.Path, hosts: dict[str, str], gpu_config: str,
        base_port: int | None = None, baremetal: bool = False,
        report_interval: int = Settings.report_interval) -> Settings:
    """Return the settings of a new cloud, without writing anything.

    :param base_port: the first of ``len(PORTS)`` ports, None to find free
        ports.
    :raises MinicloudError: if ports are taken.
    """
    if base_port is None:
        base_port = next((port for port in range(_FIRST, _LAST, _STEP)
                          if not _taken(port)), None)
        if base_port is None:
            raise error.MinicloudError(
                f'no {len(PORTS)} free ports in a row between {_FIRST} and '
                f'{_LAST}: give --base-port')
    taken = _taken(base_port)
    if taken:
        raise error.MinicloudError(
            f'--base-port {base_port}: somebody listens on '
            f'{", ".join(taken)}; give the first of {len(PORTS)} free ports')
    return Settings(directory, base_port, hosts, gpu_config,
                    secrets.token_hex(16), baremetal, report_interval)


def _taken(base_port):
    """Return the ports that are in use, as strings."""
    return [str(port) for port in range(base_port, base_port + len(PORTS))
            if not _is_free(port)]


def _is_free(port):
    with socket.socket() as trial:
        # The services set the same option, so an earlier connection that is
        # closing does not matter.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((ADDRESS, port))
        except OSError:
            return False
        return True
