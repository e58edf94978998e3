# SPDX-License-Identifier: Apache-2.0

"""Options of the weigher, in the nova.conf of nova-scheduler."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup(
    'gpu_weigher', title='GPU weigher of nova-scheduler',
    help='How ``cyborg_gpu_driver.nova.weigher.GpuWeigher``, named in '
         '``[filter_scheduler] weight_classes``, weighs hosts for servers '
         'whose device profile asks for a GPU.')

OPTS = [
    cfg.FloatOpt(
        'gpu_weight_multiplier', default=1.0,
        help='Multiplier of the weight, which is between 0 and 1, as that of '
             'other weighers is. A negative value has the same effect as its '
             'absolute value with ``strategy = spread``, unless the flavor '
             'has ``gpu:strategy``. With 0 the weigher has no effect and '
             'reads nothing. Metadata of a host aggregate with the same name '
             'overrides the option for the hosts in the aggregate.'),
    cfg.StrOpt(
        'strategy', default='pack',
        choices=[
            ('pack', 'the GPU where the request costs the least remaining '
                     'capacity; of equal GPUs the fullest'),
            ('spread', 'the emptiest GPU'),
            ('standalone', 'only GPUs without servers of other projects; '
                           'first those with servers of the same project'),
            ('quiet', 'the GPU where servers slow each other down least')],
        help='Which GPU to prefer for a server whose flavor has no '
             '``gpu:strategy``, which takes the same values.'),
    cfg.StrOpt(
        'interference_file',
        help='JSON file with the slowdown of each application beside each '
             'other one, for ``quiet``: ``{"slowdown": {"A": {"B": 1.25}}}`` '
             'says that A takes 1.25 times as long on a GPU where B runs. '
             '``null`` says that they do not fit together. Flavors name '
             'their application in ``gpu:application``. Without the file, '
             '``quiet`` counts the servers on the GPU. It is read when '
             'nova-scheduler starts.'),
]


def list_opts():
    """Every option for oslo-config-generator and the documentation."""
    return [(GROUP, OPTS)]
