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
         '``[filter_scheduler] weight_classes``, tells hosts apart for '
         'servers with a device profile of a GPU.')

OPTS = [
    cfg.FloatOpt(
        'gpu_weight_multiplier', default=1.0,
        help='How much the weigher counts beside the others, whose weights '
             'lie between 0 and 1 as well. Positive: the host on which the '
             'request costs the least of what could still be made is '
             'preferred, which packs. Negative: the one with the emptiest '
             'GPU, which spreads. 0: neither, and nothing is read. '
             'Metadata of the same name of a host aggregate overrides it '
             'for the hosts in the aggregate.'),
    cfg.FloatOpt(
        'cache_seconds', default=5.0, min=0,
        help='For how long what the GPUs have left is taken to be what was '
             'last read from Placement. It is read once for each resource '
             'class that is asked for. 0: read for each request. For each '
             'of several servers of one request it is read anew anyway.'),
    cfg.BoolOpt(
        'order_candidates', default=True,
        help='Whether the GPU within the host is chosen as well: of the '
             "host's allocation candidates, of which Nova claims the first, "
             'the best is put first. If not, each host is weighed by the '
             'GPU that comes first anyway.'),
]


def list_opts():
    """Every option for oslo-config-generator and the documentation."""
    return [(GROUP, OPTS)]
