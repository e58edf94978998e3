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

"""One side of an upgrade of the services, with servers that have GPUs.

usage: python -m cyborg_gpu_driver.tests.functional.upgraded
           before|after DIRECTORY DATABASE

The old release's Python runs this before the upgrade, and the new release's
Python runs it after the upgrade. DIRECTORY is kept between these runs: it has
the simulated GPUs, the driver's state and Placement's database. DATABASE is
the URL of Cyborg's database, which has its schema already.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import sys

from cyborg_gpu_driver.demo import cloud
from cyborg_gpu_driver.demo import database
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.functional import test_modes

_MACHINE = 'mixed'
_CLASSES = ('PGPU', 'CUSTOM_NVIDIA_T4_4C', 'CUSTOM_NVIDIA_1G_10GB',
            'CUSTOM_NVIDIA_3G_40GB')
_PAIR = 'two-slices'


class _Databases(database.Templates):
    """Cyborg's database elsewhere, and Placement's, made once and kept."""

    def __init__(self, directory: str, cyborg: str):
        super().__init__(directory)
        self.cyborg = cyborg
        self.placement = os.path.join(directory, 'placement.sqlite')

    def copy(self, directory: str) -> tuple[str, str]:
        return self.cyborg, self.placement


class Side:
    """The cloud of one release.

    :param directory: the directory that is kept.
    :param url: URL of Cyborg's database.
    """

    def __init__(self, directory: str, url: str):
        self._directory = directory
        self._record = os.path.join(directory, 'before.json')
        databases = _Databases(directory, url)
        databases.upgrade_placement()
        overrides = {group: dict(options) for group, options
                     in test_modes.MixedTest.overrides.items()}
        overrides['gpu'].update(
            simulate=_MACHINE, state_path=directory, health_events=False,
            simulate_state=os.path.join(directory, 'hardware.json'))
        self.cloud = cloud.Cloud(directory, databases, 'compute1',
                                 ['cyborg_gpu_driver'], overrides)
        self.report()

    def report(self):
        """Report twice: Cyborg creates the providers in the first report."""
        self.cloud.report()
        self.cloud.report()

    def before(self) -> None:
        """Boot servers of every kind and write down the state."""
        for name in _CLASSES:
            self._profile(name, {f'resources:{name}': '1'})
        self._profile(_PAIR, *[{f'resources:{_CLASSES[2]}': '1'}] * 2)
        untouched = self._everything()
        servers = [self.cloud.nova.create_server(name)
                   for name in (*_CLASSES, _PAIR)]
        self.report()
        with open(self._record, 'w', encoding='utf-8') as stream:
            json.dump({'untouched': untouched, 'bound': self._everything(),
                       'servers': [dataclasses.asdict(server)
                                   for server in servers]}, stream)
        self._say(f'{len(servers)} servers have '
                  f'{self._handles()} accelerators')

    def after(self) -> None:
        """Check that nothing has changed and that all can be released."""
        with open(self._record, encoding='utf-8') as stream:
            record = json.load(stream)
        self._expect(record['bound'], 'nothing has changed')
        for server in record['servers']:
            self.cloud.nova.delete_server(server['uuid'])
        self.report()
        self._expect(record['untouched'], 'nothing is left of the servers')
        again = [self.cloud.nova.create_server(name) for name in _CLASSES]
        for server in again:
            self.cloud.nova.delete_server(server.uuid)
        self.report()
        self._expect(record['untouched'], 'others come and go')

    def _profile(self, name, *groups):
        self.cloud.cyborg.create_device_profile(name, *groups)

    def _expect(self, wanted, what):
        found = json.loads(json.dumps(self._everything()))
        for part, value in wanted.items():
            if found[part] != value:
                raise SystemExit(f'not so: {what}: {part} was\n{value}\n'
                                 f'and is\n{found[part]}')
        self._say(what)

    def _everything(self):
        """Return all that must stay the same, in a form for JSON."""
        with open(os.path.join(self._directory, 'hardware.json'),
                  encoding='utf-8') as stream:
            gpus = json.load(stream)['state']['gpus']
        return {
            'Placement': self.cloud.placement.snapshot(),
            'accelerator requests': [
                {key: arq[key] for key in (
                    'uuid', 'state', 'hostname', 'instance_uuid',
                    'device_profile_name', 'device_rp_uuid',
                    'attach_handle_type', 'attach_handle_info')}
                for arq in self.cloud.cyborg.arqs()],
            'handles in use': self._handles(),
            'hardware': {address: [gpu['instances'], gpu['vgpus']]
                         for address, gpu in gpus.items()},
            'journal': self._journal()}

    def _handles(self):
        return len(self.cloud.handles_in_use())

    def _journal(self):
        return host_files.journal(self._directory)

    def _say(self, what):
        version = importlib.metadata.version('openstack-cyborg')
        print(f'Cyborg {version}: {what}', flush=True)


def main(side: str, directory: str, url: str) -> None:
    """Run one side, and stop its services whatever happens."""
    running = Side(directory, url)
    try:
        getattr(running, side)()
    finally:
        running.cloud.stop()


if __name__ == '__main__':
    main(*sys.argv[1:])
