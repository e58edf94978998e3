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


"""The file that hardware-check writes and reads."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
from typing import Any

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.support.hardware import access_facts
from cyborg_gpu_driver.support.hardware import anonymous
from cyborg_gpu_driver.support.hardware import file_facts
from cyborg_gpu_driver.support.hardware import library_view
from cyborg_gpu_driver.support.hardware import nvml_facts

KIND = 'cyborg-gpu hardware-check'
VERSION = 1
_PACKAGES = ('nvidia-ml-py', 'cyborg_gpu_driver')


def collect(conf: cfg.ConfigOpts, seen: platform.Platform,
            anonymise: bool = False) -> dict[str, Any]:
    """Return all facts about a machine in one document for JSON.

    :param conf: the options, with ``[gpu]`` registered; the commands of the
        library use them.
    :param seen: the machine.
    :param anonymise: replace UUIDs and serial numbers.
    """
    document = {
        'kind': KIND,
        'version': VERSION,
        'taken': datetime.datetime.now(datetime.timezone.utc).isoformat(
            timespec='seconds'),
        'simulated': seen.simulated,
        'anonymised': anonymise,
        'packages': {name: _installed(name) for name in _PACKAGES},
        # /proc of this machine does not describe a simulated machine.
        'system': None if seen.simulated else file_facts.collect_system(),
        # Before NVML is opened, because this process would then be among the
        # holders.
        'access': access_facts.collect(seen),
        'sysfs': file_facts.collect(seen.sysfs),
        'nvml': nvml_facts.collect(seen.nvml),
        'library': library_view.collect(conf, seen),
    }
    return anonymous.anonymise(document) if anonymise else document


def load(path: str) -> dict[str, Any]:
    """Read a document from a file.

    :raises InvalidValue: if the file cannot be read, or is not one that
        hardware-check wrote.
    """
    try:
        with open(path, encoding='utf-8') as stream:
            document = json.load(stream)
        if (document['kind'], document['version']) != (KIND, VERSION):
            raise ValueError('of another kind or version')
    except (OSError, ValueError, KeyError, TypeError,
            RecursionError) as error:
        raise exception.InvalidValue(
            what='hardware-check file', value=path,
            expected=f'expected version {VERSION} of what hardware-check '
                     f'writes ({error})') from error
    return document


def dumps(document: dict[str, Any]) -> str:
    """Return a document as text, with one NVML call per line."""
    rest = {key: value for key, value in document.items() if key != 'nvml'}
    text = json.dumps(rest, indent=1)
    calls = ',\n'.join(f'  {json.dumps(record)}'
                       for record in document['nvml'])
    return f'{text[:-2]},\n "nvml": [\n{calls}\n ]\n}}\n'


def _installed(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
