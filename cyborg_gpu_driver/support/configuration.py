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

"""The effective options, and the secrets in the configuration files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib import parse

from oslo_config import cfg
from oslo_config import iniparser

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.conf import validation
from cyborg_gpu_driver.support import redaction

_LEFT_OUT = '(left out)'
_OURS = ('gpu', 'cyborg_gpu_privileged', 'cyborg_gpu_baremetal')
_OUR_GROUPS = 'gpu_policy:'
_SHOWN = {
    'DEFAULT': {'debug', 'host', 'log_dir', 'log_file', 'state_path',
                'use_journal', 'use_stderr', 'use_syslog'},
    'agent': {'enabled_drivers'},
    'placement': {'auth_type', 'endpoint_override', 'interface',
                  'region_name', 'valid_interfaces'},
}
"""Options of Cyborg whose values are shown. Other options are shown without
values, because only an installed Cyborg knows which of them are secret."""


def collect(conf: cfg.ConfigOpts) -> dict[str, Any]:
    """Return this driver's options with values, and other options' names.

    :returns: ``files``, ``problem`` (why the policies cannot be used, or
        None), ``gpu`` (effective values, including defaults) and ``in_files``
        (options by group; a few of Cyborg's options have values).
    """
    problem = None
    try:
        policies.read(conf)
    except exception.GpuDriverError as error:
        problem = str(error)
    return {
        'files': list(validation.files(conf)), 'problem': problem,
        'gpu': {name: _value(option, conf.gpu[name]) for name, option
                in sorted(_registered(gpu_conf.GPU_OPTS))},
        'in_files': {group: {name: _shown(group, name, values)
                             for name, values in options.items()}
                     for group, options in _sections(validation.files(conf))},
    }


def secrets(conf: cfg.ConfigOpts) -> tuple[str, ...]:
    """Return the secrets in the configuration files of Cyborg and Nova.

    Skip a file that cannot be read, because nothing of it is in the bundle.
    """
    found: list[str] = []
    files = [*validation.files(conf),
             *validation.files_of('nova', 'nova-compute')]
    for group, options in _sections(files, only_readable=True):
        for name, values in options.items():
            if _shown_as_is(group, name) and not redaction.is_secret(name):
                values = [value for value in values if '://' in value]
            found += redaction.of_option(name, values)
    # A password is quoted in a URL, but not elsewhere.
    return (*found, *map(parse.unquote, found))


def log_path(conf: cfg.ConfigOpts) -> str | None:
    """Return the agent's log file as oslo.log finds it; None without one."""
    found = {name: values[-1] for group, options
             in _sections(validation.files(conf), only_readable=True)
             if group == 'DEFAULT' for name, values in options.items()}
    name = found.get('log_file')
    if name is None and 'log_dir' in found:
        name = 'cyborg-agent.log'
    return name and os.path.join(found.get('log_dir', ''), name)


def _registered(options):
    return ((option.dest, option) for option in options)


def _value(option, value):
    if option.secret and value is not None:
        return redaction.MASK
    return value if isinstance(value, (bool, int, float, type(None))
                               ) else str(value)


def _shown(group, name, values):
    if _shown_as_is(group, name) and not redaction.is_secret(name):
        return values[0] if len(values) == 1 else values
    return _LEFT_OUT


def _shown_as_is(group, name):
    return (group in _OURS or group.startswith(_OUR_GROUPS)
            or name in _SHOWN.get(group, ()))


def _sections(files: list[str], only_readable: bool = False
              ) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield the groups of files with their options' values, as written.

    :raises ConfigFileParseError, OSError: if a file cannot be read.
    """
    for path in files:
        sections: dict[str, dict[str, list[str]]] = {}
        try:
            cfg.ConfigParser(path, sections).parse()
        except (OSError, UnicodeDecodeError, cfg.Error,
                iniparser.ParseError):
            if not only_readable:
                raise
        yield from sections.items()
