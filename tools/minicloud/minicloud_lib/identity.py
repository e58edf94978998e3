# SPDX-License-Identifier: Apache-2.0

"""The content of keystone, and the image and flavor that all users may use."""

from __future__ import annotations

from minicloud_lib import clients
from minicloud_lib import common
from minicloud_lib import settings as settings_module
from minicloud_lib import steps

IMAGE = 'minimal'
FLAVOR = 'minimal'
_CATALOGUE = {
    # type: (name, whose port, path)
    'placement': ('placement', 'placement', ''),
    'compute': ('nova', 'nova', '/v2.1'),
    'accelerator': ('cyborg', 'cyborg', '/v2'),
    'image': ('glance', 'glance', ''),
    'network': ('neutron', 'neutron', ''),
}
_BAREMETAL = {'baremetal': ('ironic', 'ironic', '')}
_INTERFACES = ('public', 'internal')
_LIMITS = {'servers': 500, 'class:VCPU': 1000, 'class:MEMORY_MB': 800000}
"""Nova's unified limits: more than any test needs."""


def parts(settings: settings_module.Settings) -> list[steps.Step]:
    return [
        steps.Step('clients', (), lambda: clients.write(settings)),
        steps.Step('identity', ('clients', 'keystone'),
                   lambda: _fill_keystone(settings)),
        steps.Step('image', ('identity', 'glance'),
                   lambda: _make_image(settings)),
        steps.Step('flavor', ('identity', 'nova-api'),
                   lambda: _make_flavor(settings)),
    ]


def _fill_keystone(settings):
    """Create what does not exist yet; an earlier start may have failed here.
    """
    cloud = clients.connect(settings, clients.ADMIN)
    identity = cloud.identity
    roles = {role.name: role for role in identity.roles()}
    people = {**clients.USERS,
              **dict.fromkeys(clients.SERVICES, common.SERVICE_PROJECT)}
    projects = {
        name: identity.find_project(name) or identity.create_project(
            name=name, domain_id='default')
        for name in sorted(set(people.values()))}
    for name, project in people.items():
        user = identity.find_user(name) or identity.create_user(
            name=name, password=settings.password(name),
            domain_id='default')
        for role in (('service', 'admin') if name in clients.SERVICES
                     else ('member',)):
            identity.assign_project_role_to_user(projects[project], user,
                                                 roles[role])
    catalogue = {**_CATALOGUE, **(_BAREMETAL if settings.baremetal else {})}
    for kind, (name, port, path) in catalogue.items():
        service = identity.find_service(name) or identity.create_service(
            name=name, type=kind)
        there = {endpoint.interface for endpoint
                 in identity.endpoints(service_id=service.id)}
        for interface in set(_INTERFACES) - there:
            identity.create_endpoint(
                service_id=service.id, interface=interface,
                region_id=common.REGION, url=settings.url(port) + path)
    nova = identity.find_service('nova')
    limited = {limit.resource_name for limit in identity.registered_limits()}
    for name in sorted(_LIMITS.keys() - limited):
        identity.create_registered_limit(
            service_id=nova.id, region_id=common.REGION, resource_name=name,
            default_limit=_LIMITS[name])


def _make_image(settings):
    image = clients.connect(settings, clients.ADMIN).image
    if image.find_image(IMAGE) is None:
        # No guest ever runs this image.
        image.create_image(IMAGE, data=b'minicloud', disk_format='raw',
                           container_format='bare', visibility='public')


def _make_flavor(settings):
    compute = clients.connect(settings, clients.ADMIN).compute
    if compute.find_flavor(FLAVOR) is None:
        compute.create_flavor(name=FLAVOR, vcpus=1, ram=64, disk=1)
