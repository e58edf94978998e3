# SPDX-License-Identifier: Apache-2.0

"""The configuration of tempest for the minicloud."""

from __future__ import annotations

import configparser
import pathlib

from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.integration import minicloud
from cyborg_gpu_driver.tests.integration.tempest_run import plan

_FLAVOR = 'minimal'


def write(path: pathlib.Path, cloud: minicloud.Minicloud, run: plan.Run
          ) -> None:
    """Write a ``tempest.conf`` for a run."""
    parser = configparser.RawConfigParser()
    parser.read_dict(_sections(path.parent, cloud, run))
    with path.open('w', encoding='utf-8') as stream:
        parser.write(stream)


def _sections(directory, cloud, run):
    admin = cloud.connect('admin')
    login = admin.config.get_auth_args()
    vendor, product = plan.DEVICES[run.device].pci_id.split(':')
    return {
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
        'cyborg_pci': {'device_profile_name': run.profile,
                       'vendor_id': vendor, 'product_id': product},
        'cyborg_policy': {
            'enforce_new_defaults': plan.POLICIES[run.policy]},
    }
