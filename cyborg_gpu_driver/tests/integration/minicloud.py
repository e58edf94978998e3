# SPDX-License-Identifier: Apache-2.0

"""The cloud under test, which ``tools/minicloud`` runs."""

from __future__ import annotations

import atexit
import collections
import configparser
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import sqlalchemy
from openstack import config
from openstack import connection

from cyborg_gpu_driver.simulator import state
from cyborg_gpu_driver.simulator.machine import machine

DIRECTORY_VARIABLE = 'CYBORG_GPU_MINICLOUD'
OPTIONS_VARIABLE = 'CYBORG_GPU_MINICLOUD_OPTIONS'
"""Options of ``minicloud start``, if the tests start the cloud."""
_COMMAND = (pathlib.Path(__file__).resolve().parents[3]
            / 'tools' / 'minicloud' / 'minicloud')
_REPORT_INTERVAL = 10
"""Seconds between two reports of an agent. Most tests wait for reports."""
_ANSWER_SECONDS = 300
"""How long a test waits for one answer of a service. The error names the
request."""
_DEADLINE = 2000
"""Seconds for a command. The start of a cloud also creates its databases."""
# Read at import, because each test has its own temporary directory, which is
# deleted after the test.
_TEMPORARY = tempfile.gettempdir()


class MinicloudError(Exception):
    """A command of minicloud failed. The message has the command's output."""


class Minicloud:
    """A running cloud, whose files are in ``directory``."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        clouds = config.OpenStackConfig(
            config_files=[str(directory / 'clouds.yaml')],
            load_envvars=False)
        self._clouds = clouds
        self._connections: dict[str, connection.Connection] = {}
        settings = json.loads((directory / 'minicloud.json').read_text())
        self.hosts: tuple[str, ...] = tuple(settings['hosts'])
        """Names of the compute hosts."""
        ironic = directory / 'etc' / 'ironic' / 'ironic.conf'
        self.ironic_url: str | None = (
            _read_ini(ironic)['api']['public_endpoint'] if ironic.exists()
            else None)
        """The URL of Ironic, or None if the cloud has no Ironic."""

    @functools.cached_property
    def _cyborg(self):
        return _database(self.directory, 'cyborg', 'database')

    @functools.cached_property
    def _placement(self):
        return _database(self.directory, 'placement', 'placement_database')

    def connect(self, user: str) -> connection.Connection:
        """Return a user's connection, such as ``admin``'s or ``user1``'s."""
        if user not in self._connections:
            self._connections[user] = connection.Connection(
                config=self._clouds.get_one(cloud=user,
                                            api_timeout=_ANSWER_SECONDS))
        return self._connections[user]

    def command(self, *arguments: str) -> str:
        """Run ``minicloud`` and return what it prints.

        :raises MinicloudError: if it fails.
        """
        return run(*arguments, '--directory', str(self.directory))

    def restart(self, *services: str) -> None:
        """Restart services and wait until they are up."""
        self.command('restart', *services)

    def kill(self, *services: str) -> None:
        """Send SIGKILL to all processes of services."""
        self.command('kill', *services)

    def cyborg_gpu(self, host: str, *arguments: str) -> str:
        """Run ``cyborg-gpu`` on a host and return what it prints.

        :raises MinicloudError: if it fails.
        """
        return output([
            sys.executable, '-m', 'cyborg_gpu_driver.cmd.main',
            '--config-file', str(self._agent_conf(host)), *arguments])

    def handles_in_use(self) -> list[str]:
        """UUIDs of the attach handles that Cyborg believes to be in use.

        Read from Cyborg's database, because its API does not show them.
        """
        with self._cyborg.connect() as database:
            return list(database.scalars(sqlalchemy.text(
                'SELECT uuid FROM attach_handles WHERE in_use')))

    def release_handles(self) -> None:
        """Mark all attach handles as unused in Cyborg's database.

        This is for handles that no request has any more. Cyborg's API
        cannot release them.
        """
        with self._cyborg.begin() as database:
            database.execute(sqlalchemy.text(
                'UPDATE attach_handles SET in_use = FALSE'))

    def allocations(self) -> dict[str, set[str]]:
        """UUIDs of the consumers of each resource provider in use, by name.

        Read from Placement's database. Its API has no request for all
        resource providers, and tests call this method in a loop.
        """
        found = collections.defaultdict(set)
        with self._placement.connect() as database:
            for provider, consumer in database.execute(sqlalchemy.text(
                    'SELECT name, consumer_id FROM allocations '
                    'JOIN resource_providers '
                    'ON resource_providers.id = resource_provider_id')):
                found[provider].add(consumer)
        return dict(found)

    def inventories(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Total and reserved by resource provider and resource class.

        Read from Placement's database, as :meth:`allocations` is.
        """
        found: dict[str, dict[str, tuple[int, int]]] = (
            collections.defaultdict(dict))
        with self._placement.connect() as database:
            for provider, name, total, reserved in database.execute(
                    sqlalchemy.text(
                        'SELECT resource_providers.name, '
                        'resource_classes.name, total, reserved '
                        'FROM inventories JOIN resource_providers '
                        'ON resource_providers.id = resource_provider_id '
                        'JOIN resource_classes '
                        'ON resource_classes.id = resource_class_id')):
                found[provider][name] = total, reserved
        return dict(found)

    def hardware(self, host: str) -> dict[str, state.Gpu]:
        """The state of each simulated GPU of a host, by address.

        Read from the simulator's file, never from the driver.
        """
        parser = _read_ini(self._agent_conf(host))
        document = json.loads(pathlib.Path(
            parser['gpu']['simulate_state']).read_text())
        return state.from_json(document['state']).gpus

    def vgpus(self, host: str
              ) -> dict[str, tuple[state.Gpu, state.Vgpu]]:
        """Each vGPU of a host with its GPU, by the mdev's UUID."""
        return {vgpu.uuid: (gpu, vgpu)
                for gpu in self.hardware(host).values()
                for vgpu in gpu.vgpus}

    def claims(self, host: str) -> list[str]:
        """The attach handles in the claims of a host's records."""
        records = pathlib.Path(self.state_path(host), 'gpus').glob('*.json')
        return [claim['handle'] for record in records for claim in
                json.loads(record.read_text())['content'].get('claims', ())]

    def machine(self, host: str) -> machine.Machine:
        """The simulated machine of a host, so that a test can change it."""
        settings = _read_ini(self._agent_conf(host))['gpu']
        return machine.Machine.load(settings['simulate'],
                                    settings['simulate_state'])

    def state_path(self, host: str) -> str:
        """The directory in which the driver on a host keeps its state."""
        return _read_ini(self._agent_conf(host))['gpu']['state_path']

    def enable_drivers(self, host: str, *drivers: str) -> None:
        """Configure the drivers that a host's agent loads when it starts."""
        self.configure(host, 'agent', enabled_drivers=', '.join(drivers))

    def configure(self, host: str, group: str, **options: str | None
                  ) -> str | None:
        """Set options of a host's agent, which it reads at its next start.

        :param options: the value of each option; None removes the option.
        :returns: the former value of the last option.
        """
        path = self._agent_conf(host)
        parser = _read_ini(path)
        before = None
        for name, value in options.items():
            before = parser.get(group, name, fallback=None)
            if value is None:
                parser.remove_option(group, name)
            else:
                parser.set(group, name, value)
        with path.open('w', encoding='utf-8') as stream:
            parser.write(stream)
        return before

    def console(self, host: str, server: str) -> pathlib.Path:
        """The file whose content Nova shows as the console of a server."""
        directory = self.directory / 'data' / host / 'nova' / 'consoles'
        directory.mkdir(exist_ok=True)
        return directory / server

    def process(self, service: str) -> int:
        """The process id of a service, which is also its group's id."""
        return int(next(
            row['pid'] for row
            in json.loads(self.command('status', '--format', 'json'))
            if row['service'] == service))

    def log(self, service: str) -> str:
        """Return the log of a service."""
        return (self.directory / 'log' / f'{service}.log').read_text(
            encoding='utf-8', errors='replace')

    def _agent_conf(self, host):
        return (self.directory / 'etc' / 'cyborg'
                / f'cyborg-agent-{host}.conf')


class _Shared:
    """The cloud of this process. The first test that needs it starts it."""

    def __init__(self):
        self._cloud: Minicloud | None = None
        self._problem: MinicloudError | None = None

    def get(self) -> Minicloud:
        """Return the cloud, and start it first if necessary.

        :raises MinicloudError: in this and all later calls, if the cloud did
            not start.
        """
        if self._problem is not None:
            raise self._problem
        if self._cloud is None:
            try:
                self._cloud = self._start()
            except MinicloudError as problem:
                self._problem = problem
                raise
        return self._cloud

    def _start(self):
        given = os.environ.get(DIRECTORY_VARIABLE)
        if given:
            directory = pathlib.Path(given)
            run('status', '--directory', given)
        else:
            parent = tempfile.mkdtemp(prefix='minicloud-', dir=_TEMPORARY)
            directory = pathlib.Path(parent, 'cloud')
            atexit.register(_wipe, directory)
            run('start', '--report-interval', str(_REPORT_INTERVAL),
                *os.environ.get(OPTIONS_VARIABLE, '').split(),
                '--directory', str(directory))
        return Minicloud(directory)


shared = _Shared()


def run(*arguments: str) -> str:
    """Run ``minicloud`` and return what it prints.

    :raises MinicloudError: if it fails.
    """
    return output([sys.executable, str(_COMMAND), *arguments])


def _wipe(directory):
    try:
        run('wipe', '--directory', str(directory))
    finally:
        shutil.rmtree(directory.parent, ignore_errors=True)


def output(command: list[str]) -> str:
    """Run a command and return what it prints.

    :raises MinicloudError: if it fails or takes too long.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True,
                              check=False, stdin=subprocess.DEVNULL,
                              timeout=_DEADLINE)
    except subprocess.TimeoutExpired as late:
        raise MinicloudError(f'{late}:\n{late.stdout}\n{late.stderr}'
                             ) from late
    if done.returncode:
        raise MinicloudError(
            f'{" ".join(command)} ended with {done.returncode}:\n'
            + done.stdout + done.stderr)
    return done.stdout


def _database(directory, service, section):
    """Return an SQLAlchemy engine for the database of a service."""
    options = _read_ini(
        directory / 'etc' / service / f'{service}.conf')[section]
    return sqlalchemy.create_engine(options['connection'])


def _read_ini(path):
    parser = configparser.RawConfigParser()
    with path.open(encoding='utf-8') as stream:
        parser.read_file(stream)
    return parser
