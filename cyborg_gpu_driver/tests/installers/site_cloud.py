# SPDX-License-Identifier: Apache-2.0

"""The cloud of test_site.py, which runs this file on its host.

usage: site_cloud.py start  - start it, and write cyborg.conf of the agent
       site_cloud.py wait   - wait until Placement has what the host offers
"""

import json
import pathlib
import sys
import time

from minicloud_lib import clients
from minicloud_lib import cloud
from minicloud_lib import cyborg
from minicloud_lib import identity
from minicloud_lib import inifile
from minicloud_lib import keystone
from minicloud_lib import mariadb
from minicloud_lib import placement
from minicloud_lib import rabbitmq
from minicloud_lib import settings as settings_module
from minicloud_lib import steps

DIRECTORY = pathlib.Path('/var/lib/minicloud')
CONF = '/etc/cyborg/cyborg.conf'
HOST = 'compute1'


def start():
    """Start all but Nova and what it needs, and do nova-compute's part."""
    settings = settings_module.new(DIRECTORY, {}, '/dev/null')
    settings.save()
    cloud._COMPONENTS = (mariadb, rabbitmq, keystone, identity, placement,
                         cyborg)
    services = cloud.Cloud(settings, print)
    for name in ('image', 'flavor'):
        del services._parts[name]
    services.start()
    clients.connect(settings, clients.ADMIN).placement.\
        create_resource_provider(name=HOST)
    pathlib.Path(CONF).parent.mkdir()
    inifile.write(pathlib.Path(CONF), inifile.merge(
        cyborg._sections(settings, HOST),
        {'DEFAULT': {'state_path': '/var/lib/cyborg'},
         'oslo_concurrency': {'lock_path': '/tmp'},
         'agent': {'resource_provider_name': HOST}}))


def wait():
    """Print the inventories of each provider that the host offers."""
    settings = settings_module.load(DIRECTORY)
    command = [steps.binary('cyborg-gpu'), '--config-file', CONF, 'offer',
               'list', '-f', 'json']
    api = clients.connect(settings, clients.ADMIN).placement
    expected, found = set(), {}
    while not expected or expected - found.keys():
        # The first report makes the GPUs ready.
        time.sleep(1)
        expected = {row['provider_name'] for row in json.loads(
            steps.output(command, settings)) if row['reported'] == 'yes'}
        found = {provider.name: provider
                 for provider in api.resource_providers()}
    for name in sorted(expected):
        print('offer', name, *(
            f'{item.resource_class}={item.total}' for item
            in api.resource_provider_inventories(found[name])))


if __name__ == '__main__':
    {'start': start, 'wait': wait}[sys.argv[1]]()
