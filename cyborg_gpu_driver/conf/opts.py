# SPDX-License-Identifier: Apache-2.0

"""Options for oslo-config-generator and the documentation."""

from keystoneauth1 import loading
from oslo_config import cfg

from cyborg_gpu_driver.conf import gpu

_CLOUD = cfg.OptGroup(
    'gpu_cloud', title='User of the agent',
    help='The user with whom the agent compares the accelerator requests of '
         'Cyborg with what is bound on this host. The user needs the role '
         'admin. Without auth_type, accelerator requests are not read, '
         'nothing is removed for having no request, and Cyborg is asked as '
         'the user of [placement] which devices are disabled. If the user '
         'also has the role service, the requests of deleted servers are '
         'deleted.')


def list_opts():
    """Every option group with its options (entry point oslo.config.opts)."""
    return [(gpu.gpu_group(), gpu.GPU_OPTS),
            (gpu.policy_group('name'), gpu.POLICY_OPTS),
            (_CLOUD, [*loading.get_auth_common_conf_options(),
                      *loading.get_auth_plugin_conf_options('password'),
                      *loading.get_session_conf_options(),
                      *loading.get_adapter_conf_options(
                          include_deprecated=False)])]
