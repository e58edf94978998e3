# SPDX-License-Identifier: Apache-2.0

"""Options of ``[gpu_baremetal]``, in ironic.conf.

The inspection hook reads them. The step that applies a layout reads only
``layout_files``, in the configuration of ironic-python-agent.
"""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'gpu_baremetal'

OFF = 'off'
SUGGEST = 'suggest'
SET = 'set'
TEMPLATES = 'templates'
ALL = 'all'

OPTS = [
    cfg.ListOpt(
        'layout_files', default=[],
        help='Files of layouts, in the format of mig-parted. The step '
             'apply_gpu_layout finds these layouts by name. They take '
             'precedence over the layouts that "cyborg-gpu layout generate" '
             'writes. If layout_traits is "all", a node gets the trait of '
             'each layout that its GPUs support.'),
    cfg.StrOpt(
        'layout_traits', default=TEMPLATES,
        choices=[
            (TEMPLATES, 'layouts of deploy templates'),
            (ALL, 'also those of layout_files, and those that "cyborg-gpu '
                  'layout generate" would write for the node')],
        help='Which layouts give the trait CUSTOM_GPU_LAYOUT_<NAME> to the '
             'nodes whose GPUs support them. Only a deploy template of that '
             'name creates the layout. A server whose flavor requires a trait '
             'without such a template gets GPUs without the layout.'),
    cfg.StrOpt(
        'resource_class', default=SUGGEST,
        choices=[
            (OFF, 'the resource class is not recorded'),
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
