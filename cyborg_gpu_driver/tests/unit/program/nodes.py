# SPDX-License-Identifier: Apache-2.0

"""The parts of one host, as a node puts them together, for tests."""

from __future__ import annotations

from oslo_config import cfg

from cyborg_gpu_driver import node
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.program import services


class Node(node.Node):
    """The node of a platform that a test has opened.

    :param cloud: answers for the cloud's services. A test may replace its
        methods at any time.
    """

    def __init__(self, machine, state_path, settings=None, cloud=None):
        conf = cfg.ConfigOpts()
        gpu_conf.register_opts(conf)
        conf([], default_config_files=[])
        conf.set_override('state_path', state_path, group='gpu')
        super().__init__(conf, settings or policies.Settings(), 'host1')
        self.platform = machine
        self.cloud = cloud or services.Services()


def _forwarded(name):
    return lambda self, *arguments: getattr(self.cloud, name)(*arguments)


for _name in vars(services.Services):
    if not _name.startswith('_'):
        setattr(Node, _name, _forwarded(_name))
