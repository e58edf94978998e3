# SPDX-License-Identifier: Apache-2.0

"""Options of ``[gpu_baremetal]``, in ironic.conf.

The inspection hook reads them. The step that applies a layout reads only
``layout_files``, in the configuration of ironic-python-agent.
"""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'gpu_baremetal'

SUGGEST = 'suggest'
SET = 'set'

OPTS = [
    cfg.ListOpt(
        'layout_files', default=[],
        help='Files of layouts, in the format of mig-parted. The step '
             'apply_gpu_layout finds these layouts by name. They take '
             'precedence over the layouts that "cyborg-gpu layout generate" '
             'writes.'),
    cfg.StrOpt(
        'resource_class', default=SUGGEST,
        choices=[
            (SUGGEST, "the resource class is written into the node's property "
                      'nvidia_gpus as resource_class, for information'),
            (SET, 'the resource class is also set on a node that has none')],
        help='How the inspection uses the resource class that it derives from '
             'the GPUs, such as baremetal-gpu-h100-80gb-hbm3-x8.'),
]


def group():
    """The option group ``[gpu_baremetal]``; a new one each time."""
    return cfg.OptGroup(
        GROUP, title='NVIDIA GPUs of bare-metal nodes',
        help='How the inspection of nodes describes their GPUs.')


def register_opts(conf):
    """Register ``[gpu_baremetal]``, unless it is registered."""
    ours = group()
    conf.register_group(ours)
    conf.register_opts(OPTS, group=ours)


def list_opts():
    """Every option for oslo-config-generator and the documentation."""
    return [(group(), OPTS)]
