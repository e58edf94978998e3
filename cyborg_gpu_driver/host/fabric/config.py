# SPDX-License-Identifier: Apache-2.0

"""Configuration of NVIDIA's fabric manager, a file of KEY=VALUE lines.

From "Fabric Manager Config Options" in the fabric manager's user guide and
the comments in the file itself.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.fabric import abi
from cyborg_gpu_driver.host.snapshot import model

PATH = '/usr/share/nvidia/nvswitch/fabricmanager.cfg'


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of the fabric manager that this library uses."""

    mode: model.FabricMode = model.FabricMode.BARE_METAL
    address: str = f'127.0.0.1:{abi.PORT}'
    """Where libnvfm reaches the fabric manager: address and port, or path."""

    @property
    def is_unix_socket(self) -> bool:
        """Whether ``address`` is a path."""
        return self.address.startswith('/')


def read(source: str | Callable[[], str]) -> Config:
    """Read the configuration file."""
    path = PATH if callable(source) else source
    try:
        if callable(source):
            text = source()
        else:
            with open(source, encoding='utf-8', errors='replace') as stream:
                text = stream.read()
    except OSError as error:
        raise _error(path, error.strerror) from error
    return parse(text, path)


def parse(text: str, path: str = PATH) -> Config:
    """Parse the text of a configuration file."""
    values = dict(_items(text))
    mode = _number(values, 'FABRIC_MODE', 0, 2, path)
    return Config(model.FabricMode(mode), _address(values, path))


def _items(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, equals, value = line.partition('=')
        if equals and not key.strip().startswith('#'):
            yield key.strip(), value.strip()


def _number(values: Mapping[str, str], key: str, default: int, most: int,
            path: str) -> int:
    text = values.get(key) or str(default)
    if not (text.isascii() and text.isdecimal() and int(text) <= most):
        raise _error(path, f'{key}={text}: expected 0 to {most}')
    return int(text)


def _address(values: Mapping[str, str], path: str) -> str:
    socket = values.get('FM_CMD_UNIX_SOCKET_PATH', '')
    if socket:
        if not socket.startswith('/') or len(socket.encode()) >= abi.TEXT:
            raise _error(path, f'FM_CMD_UNIX_SOCKET_PATH={socket}: expected '
                         f'an absolute path of less than {abi.TEXT} bytes')
        return socket
    host = values.get('FM_CMD_BIND_INTERFACE') or '127.0.0.1'
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        raise _error(path, f'FM_CMD_BIND_INTERFACE={host}: expected an IPv4 '
                     'address') from None
    port = _number(values, 'FM_CMD_PORT_NUMBER', abi.PORT, 65535, path)
    return f'{host}:{port}'


def _error(path: str, reason: str | None) -> exception.FabricError:
    return exception.FabricError(call=f'reading {path}',
                                 symbol='NOT_READABLE', reason=reason)
