# SPDX-License-Identifier: Apache-2.0

"""Prepare the cloud for a run, and find what a run leaves on the cloud."""

from __future__ import annotations

import configparser
import contextlib
import dataclasses
import pathlib
import time
import uuid
from collections.abc import Iterator

from openstack import exceptions

from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.integration import minicloud
from cyborg_gpu_driver.tests.integration.tempest_run import known

_API = 'cyborg-api'
_FLAVOR = 'minimal'
_PROJECT = 'project1'
"""A project of the minicloud."""
_POLL = 0.5


@dataclasses.dataclass(frozen=True)
class Device:
    """A device that a server gets instead of the plug-in's FPGA.

    :ivar resource_class: the resource class that our driver publishes for
        the minicloud's hosts (``tools/minicloud/hosts``).
    :ivar trait: a trait that our driver publishes, which the device profile
        requires.
    :ivar handle_type: Cyborg's type of the attach handle.
    :ivar providers: the number of the hosts' GPUs that have the device.
    :ivar product: the PCI ID of the GPU behind the device.
    """

    resource_class: str
    trait: str
    handle_type: str
    providers: int
    product: str

    @property
    def groups(self) -> list[dict[str, str]]:
        """The groups of a device profile that asks for one such device."""
        return [{f'resources:{self.resource_class}': '1',
                 f'trait:{self.trait}': 'required'}]


DEVICES = {
    'whole': Device('PGPU', 'CUSTOM_GPU_KIND_PASSTHROUGH', 'PCI', 2, '1eb8'),
    'slice': Device('CUSTOM_NVIDIA_1G_10GB', 'CUSTOM_GPU_KIND_MIG', 'MDEV', 4,
                    '20b2'),
    'vgpu': Device('CUSTOM_NVIDIA_A100_8C', 'CUSTOM_GPU_KIND_VGPU', 'MDEV', 2,
                   '20f1'),
}


class NotInForce(Exception):
    """Cyborg's API applies other policy defaults than the configured ones."""


@contextlib.contextmanager
def policy(cloud: minicloud.Minicloud, name: str) -> Iterator[None]:
    """Run Cyborg's API with new or with legacy policy defaults.

    oslo.policy 6 always enforces scopes and has no option for them any more.

    :param name: key of :data:`known.POLICIES`.
    :raises NotInForce: if the API does not behave accordingly. The plug-in's
        tests would not show this: they pass with either defaults.
    """
    enforced = known.POLICIES[name]
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
def device_profile(cloud: minicloud.Minicloud, name: str, device: str
                   ) -> Iterator[None]:
    """Create the device profile of the lifecycle tests; delete it at exit.

    A device profile that cannot be deleted because a request uses it is left.
    """
    accelerator = cloud.connect('admin').accelerator
    exceptions.raise_from_response(accelerator.post(
        '/device_profiles', json=[{
            'name': name, 'groups': DEVICES[device].groups}]))
    try:
        yield
    finally:
        accelerator.delete('/device_profiles', params={'value': name})


def write_conf(directory: pathlib.Path, cloud: minicloud.Minicloud,
               policy_name: str, profile: str, device: str) -> None:
    """Write a ``tempest.conf`` for a run.

    :param profile: name of the device profile of the lifecycle tests.
    """
    admin = cloud.connect('admin')
    login = admin.config.get_auth_args()
    parser = configparser.RawConfigParser()
    parser.read_dict({
        'DEFAULT': {'log_file': directory / 'tempest.log'},
        'oslo_concurrency': {'lock_path': directory / 'locks'},
        'auth': {'admin_username': login['username'],
                 'admin_password': login['password'],
                 'admin_project_name': login['project_name'],
                 'admin_domain_name': login['project_domain_name'],
                 'create_isolated_networks': False},
        'identity': {'uri_v3': login['auth_url'],
                     'region': admin.config.get_region_name(),
                     'v3_endpoint_type': 'public'},
        'service_available': {'cinder': False, 'horizon': False,
                              'swift': False},
        'compute': {
            'image_ref': admin.image.find_image(base.IMAGE).id,
            'flavor_ref': admin.compute.find_flavor(_FLAVOR).id,
            # The first version in which a request for a server can ask for
            # no network.
            'min_microversion': '2.37', 'max_microversion': 'latest'},
        'compute-feature-enabled': {'snapshot': False},
        # The servers have no guests to log in to.
        'validation': {'run_validation': False},
        'cyborg_pci': {'device_profile_name': profile, 'vendor_id': '10de',
                       'product_id': DEVICES[device].product},
        'cyborg_policy': {
            'enforce_new_defaults': known.POLICIES[policy_name]}})
    with (directory / 'tempest.conf').open('w', encoding='utf-8') as stream:
        parser.write(stream)


def wait_for_devices(cloud: minicloud.Minicloud, device: Device) -> None:
    """Wait until each GPU that has such a device has a free one.

    One free device is not enough: a server that is unshelved needs a
    different device from the one that it had.

    :raises base.Late: if a GPU has none after :data:`base.DEADLINE` seconds.
    """
    placement = cloud.connect('admin').placement
    deadline = time.monotonic() + base.DEADLINE
    while len(placement.get('/resource_providers', microversion='1.4', params={
            'resources': f'{device.resource_class}:1'},
            ).json()['resource_providers']) < device.providers:
        if time.monotonic() > deadline:
            raise base.Late(f'{device.resource_class} is not free')
        time.sleep(_POLL)


def left(cloud: minicloud.Minicloud) -> dict[str, object]:
    """What the tests have left behind, by kind; empty if nothing is left.

    Waits, because some traces disappear a moment after Nova has deleted a
    server.
    """
    deadline = time.monotonic() + base.DEADLINE
    while (found := _left(cloud)) and time.monotonic() < deadline:
        time.sleep(_POLL)
    return found


def _refuses_readers(cloud):
    """Whether Cyborg forbids a reader to delete an accelerator request.

    The new defaults require the member role for that. The legacy defaults
    allow it to every user of the project, so Cyborg answers that the request
    does not exist.
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
