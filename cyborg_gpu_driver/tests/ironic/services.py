# SPDX-License-Identifier: Apache-2.0

"""The released Ironic as a process: API and conductor, on SQLite."""

from __future__ import annotations

import atexit
import configparser
import contextlib
import functools
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from collections.abc import Mapping

import openstack
import requests
from openstack.connection import Connection

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.ironic import leash

# Below the ports that Linux uses for outgoing connections (32768 to 60999).
_PORTS = range(20000, 32768)
# Each look costs Ironic and the test some 40 ms of CPU time.
_POLL = 0.5
# Read on import, because a test's own temporary directory is deleted with it.
TEMPORARY = tempfile.gettempdir()
"""A temporary directory that other users can also read."""
_CONF = {
    'DEFAULT': {
        'auth_strategy': 'noauth',
        'enabled_hardware_types': 'fake-hardware',
        'enabled_bios_interfaces': 'no-bios',
        'enabled_boot_interfaces': 'fake',
        'enabled_console_interfaces': 'no-console',
        # This interface runs the agent's steps and writes no image.
        'enabled_deploy_interfaces': 'custom-agent',
        'enabled_firmware_interfaces': 'no-firmware',
        'enabled_inspect_interfaces': 'agent',
        'enabled_management_interfaces': 'fake',
        'enabled_network_interfaces': 'noop',
        'enabled_power_interfaces': 'fake',
        'enabled_raid_interfaces': 'no-raid',
        'enabled_rescue_interfaces': 'no-rescue',
        'enabled_storage_interfaces': 'noop',
        'enabled_vendor_interfaces': 'no-vendor',
        'host': 'conductor',
        'my_ip': '127.0.0.1',
        'rpc_transport': 'none',
    },
    'agent': {'require_tls': 'false', 'deploy_logs_collect': 'never'},
    # The agent waits at most half of this time between two heartbeats.
    'api': {'host_ip': '127.0.0.1', 'ramdisk_heartbeat_timeout': '1'},
    'conductor': {'graceful_shutdown_timeout': '1',
                  'node_locked_retry_attempts': '60'},
    'deploy': {'erase_devices_priority': '0',
               'erase_devices_metadata_priority': '0'},
    'inspector': {'hooks': 'ramdisk-error,validate-interfaces,ports,'
                           'nvidia-gpus',
                  # The fake boot interface does not support managed boot.
                  'require_managed_boot': 'false'},
    # Nothing answers there, and Ironic does not ask: the networks are noop.
    'neutron': {'auth_type': 'none',
                'endpoint_override': 'http://127.0.0.1:9'},
}


class NotInTime(Exception):
    """A condition was not met in time; the message says what was found."""


class Ironic:
    """Ironic in a directory of its own, which runs until :meth:`stop`.

    :raises NotInTime: if Ironic does not start in time.
    """

    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        self.url = f'http://127.0.0.1:{free_port()}'
        configuration = directory / 'ironic.conf'
        self._write(configuration)
        self._log = directory / 'ironic.log'
        _run(directory, 'ironic-dbsync', '--config-file', configuration,
             'create_schema')
        with self._log.open('ab') as log:
            self._process = subprocess.Popen(
                [sys.executable, '-m', leash.__name__, _command('ironic'),
                 '--config-file', configuration],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=directory, env=_environment(directory))
        try:
            until(self._is_up, scope.HANG, self.log)
        except BaseException:
            self.stop()
            raise

    @functools.cached_property
    def connection(self) -> Connection:
        """A connection to the API with administrator access."""
        return openstack.connect(
            load_yaml_config=False, load_envvars=False, auth_type='none',
            endpoint=self.url, baremetal_endpoint_override=self.url)

    def log(self) -> str:
        """Everything that Ironic has logged."""
        return self._log.read_text(encoding='utf-8', errors='replace')

    def stop(self) -> None:
        """End the process and wait until it is gone."""
        end(self._process)

    def _is_up(self):
        if self._process.poll() is not None:
            raise NotInTime(f'ironic ended:\n{self.log()}')
        try:
            # The conductor's hardware types: API and conductor are up.
            return requests.get(f'{self.url}/v1/drivers',
                                timeout=scope.HANG).json().get('drivers')
        except requests.RequestException:
            return False

    def _write(self, path):
        directory = self.directory
        port = self.url.rpartition(':')[2]
        more = {
            'DEFAULT': {'state_path': directory, 'tempdir': directory},
            'api': {'port': port},
            'database': {'connection': f'sqlite:///{directory}/ironic.db'},
            'oslo_concurrency': {'lock_path': directory / 'locks'},
            'service_catalog': {'endpoint_override': self.url}}
        write_ini(path, _CONF, more)


@functools.cache
def shared() -> Ironic:
    """Return the Ironic that this process shares; the first call starts it.
    """
    directory = pathlib.Path(tempfile.mkdtemp(prefix='ironic-',
                                              dir=TEMPORARY))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    ironic = Ironic(directory)
    atexit.register(ironic.stop)
    return ironic


def until(condition: Callable[[], object], seconds: float,
          otherwise: Callable[[], str]) -> None:
    """Wait until a condition is true.

    :param otherwise: returns the message for a condition that is not met.
    :raises NotInTime: if the condition is not met in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise NotInTime(otherwise())
        time.sleep(_POLL)


def end(process: subprocess.Popen) -> None:
    """End a process and wait until it is gone."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port of the loopback interface that is not in use."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(('127.0.0.1', port))
            return port


def write_ini(path: pathlib.Path,
              *parts: Mapping[str, Mapping[str, object]]) -> None:
    """Write a configuration file from parts; later parts take precedence."""
    parser = configparser.RawConfigParser(default_section='')
    for part in parts:
        parser.read_dict(part)
    with path.open('w', encoding='utf-8') as stream:
        parser.write(stream)


def _command(name):
    return os.path.join(sys.prefix, 'bin', name)


def _environment(directory):
    return {'PATH': os.environ['PATH'], 'HOME': str(directory),
            'TMPDIR': str(directory), 'LANG': 'C.UTF-8',
            'PYTHONWARNINGS': 'ignore', **checkout()}


def checkout() -> dict[str, str]:
    """Return the variables with which another process imports this code."""
    return {name: os.environ[name] for name in ('PYTHONPATH',)
            if name in os.environ}


def _run(directory, name, *arguments):
    subprocess.run([_command(name), *arguments], check=True,
                   capture_output=True, cwd=directory,
                   env=_environment(directory))
