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
        help='Multiplier of the weight, which lies between 0 and 1 as that of '
             'other weighers does. A positive value packs: it prefers the '
             'host on which the request costs the least of what could still '
             'be created. A negative value spreads: it prefers the host with '
             'the emptiest GPU. With 0 the weigher has no effect and reads '
             'nothing. Metadata of the same name of a host aggregate '
             'overrides the option for the hosts in the aggregate.'),
    cfg.FloatOpt(
        'cache_seconds', default=5.0, min=0,
        help='Seconds for which the free capacity of the GPUs is kept after '
             'it was read from Placement. It is read once for each resource '
             'class that is requested. 0 reads it for each request. It is '
             'read again for each of several servers of one request in any '
             'case.'),
    cfg.BoolOpt(
        'order_candidates', default=True,
        help='Whether to choose the GPU within the host as well. The best of '
             "the host's allocation candidates is then put first, which is "
             'the one that Nova claims. If false, each host is weighed by the '
             'GPU of its first candidate.'),
]


def list_opts():
    """Every option for oslo-config-generator and the documentation."""
    return [(GROUP, OPTS)]
