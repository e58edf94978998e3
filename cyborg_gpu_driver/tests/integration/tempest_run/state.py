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

"""What the cloud is made to be for a run, and what a run leaves on it."""

from __future__ import annotations

import configparser
import contextlib
import time
import uuid
from collections.abc import Iterator

from openstack import exceptions

from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.integration import minicloud
from cyborg_gpu_driver.tests.integration.tempest_run import plan

_API = 'cyborg-api'
_PROJECT = 'project1'
"""One of the minicloud's."""
_POLL = 0.5


class NotInForce(Exception):
    """Cyborg's API decides by other policies than it was told to."""


@contextlib.contextmanager
def policy(cloud: minicloud.Minicloud, enforced: bool) -> Iterator[None]:
    """Have Cyborg's API on new or on legacy policy defaults meanwhile.

    :param enforced: scopes and new defaults alike. oslo.policy 6 enforces
        scopes in any case and does not know their option any more.
    :raises NotInForce: if that does not change what it allows: the plug-in's
        tests pass under either.
    """
    path = cloud.directory / 'etc' / 'cyborg' / 'cyborg.conf'
    before = path.read_text(encoding='utf-8')
    parser = configparser.RawConfigParser()
    parser.read_string(before)
    parser['oslo_policy'] = {'enforce_new_defaults': str(enforced),
                             'enforce_scope': str(enforced)}
    try:
        with path.open('w', encoding='utf-8') as stream:
            parser.write(stream)
        cloud.restart(_API)
        if _refuses_readers(cloud) != enforced:
            raise NotInForce(f'enforce_new_defaults = {enforced}')
        yield
    finally:
        path.write_text(before, encoding='utf-8')
        cloud.restart(_API)


@contextlib.contextmanager
def device_profile(cloud: minicloud.Minicloud, run: plan.Run
                   ) -> Iterator[None]:
    """Have the device profile of the lifecycle tests meanwhile.

    One that cannot be removed, because a request has it, is left.
    """
    accelerator = cloud.connect('admin').accelerator
    exceptions.raise_from_response(accelerator.post(
        '/device_profiles', json=[{
            'name': run.profile,
            'groups': plan.DEVICES[run.device].groups}]))
    try:
        yield
    finally:
        accelerator.delete('/device_profiles',
                           params={'value': run.profile})


def wait_for_devices(cloud: minicloud.Minicloud, device: plan.Device
                     ) -> None:
    """Wait until each GPU that has such a device can give one.

    Not for one alone: a server that is unshelved needs another than it had.

    :raises base.Late: if one cannot in the time of a report and then some.
    """
    placement = cloud.connect('admin').placement
    deadline = time.monotonic() + base.SETTLE
    while len(placement.get('/resource_providers', microversion='1.4', params={
            'resources': f'{device.resource_class}:1'},
            ).json()['resource_providers']) < device.providers:
        if time.monotonic() > deadline:
            raise base.Late(f'{device.resource_class} is not free')
        time.sleep(_POLL)


def left(cloud: minicloud.Minicloud) -> dict[str, object]:
    """What the tests have left behind, by kind; empty for nothing.

    Some goes a moment after Nova has said that a server is gone.
    """
    deadline = time.monotonic() + base.SETTLE
    while (found := _left(cloud)) and time.monotonic() < deadline:
        time.sleep(_POLL)
    return found


def _refuses_readers(cloud):
    """Whether one who may only read may not delete a request, either.

    The new defaults want a member for that, the legacy ones anybody of the
    project, who is told that there is no such request.
    """
    identity = cloud.connect('admin').identity
    name, password = f'reader-{uuid.uuid4().hex[:12]}', uuid.uuid4().hex
    user = identity.create_user(name=name, password=password,
                                domain_id='default')
    try:
        project = identity.find_project(_PROJECT)
        identity.assign_project_role_to_user(
            project, user, identity.find_role('reader'))
        answer = cloud.connect('admin').connect_as(
            username=name, password=password, project_name=_PROJECT,
            ).accelerator.delete('/accelerator_requests',
                                 params={'arqs': str(uuid.uuid4())})
    finally:
        identity.delete_user(user)
    if answer.status_code not in {403, 404}:
        exceptions.raise_from_response(answer)
    return answer.status_code == 403


def _left(cloud):
    accelerator = cloud.connect('admin').accelerator
    kinds = {
        'servers': [server.id for server in cloud.connect(
            'admin').compute.servers(all_projects=True)],
        'accelerator requests': accelerator.get(
            '/accelerator_requests').json()['arqs'],
        'device profiles': accelerator.get(
            '/device_profiles').json()['device_profiles'],
        'handles in use': cloud.handles_in_use(),
        **{f'on {address} of {host}': (gpu.instances, gpu.vgpus)
           for host in cloud.hosts
           for address, gpu in cloud.hardware(host).items()
           if gpu.instances or gpu.vgpus}}
    return {kind: found for kind, found in kinds.items() if found}
