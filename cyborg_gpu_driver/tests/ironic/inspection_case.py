# SPDX-License-Identifier: Apache-2.0

"""Run inspections: the agent's collectors, then the conductor's hooks."""

from __future__ import annotations

import json
import pathlib
import uuid
from unittest import mock

import fixtures
from ironic import objects
from ironic.conductor import task_manager
from ironic.drivers.modules import inspect_utils
from ironic.drivers.modules.inspector import agent
from ironic.tests.unit.db import base
from ironic.tests.unit.objects import utils as obj_utils
from ironic_python_agent import encoding
from ironic_python_agent import errors
from ironic_python_agent import inspector
from ironic_python_agent import utils as agent_utils
from oslo_config import cfg

from cyborg_gpu_driver.baremetal import inventory as baremetal_inventory
from cyborg_gpu_driver.conf import baremetal as baremetal_conf
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.simulator.machine import machine as simulator

H100 = {'CUSTOM_NVIDIA_2330', 'CUSTOM_GPU_MODEL_H100_80GB_HBM3',
        'CUSTOM_GPU_ARCH_HOPPER', 'CUSTOM_GPU_MEMORY_80GB',
        'CUSTOM_GPU_COUNT_8', 'CUSTOM_GPU_HEALTHY'}
_HOOKS = 'ramdisk-error,nvidia-gpus'


class InspectionCase(base.DbTestCase):
    """A conductor with its database, and one node that is inspected."""

    def setUp(self):
        # Creating the database would configure logging for the whole process
        # and disable all existing loggers.
        with mock.patch('logging.config.fileConfig', autospec=True):
            super().setUp()
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        self.log = self.useFixture(
            fixtures.FakeLogger('cyborg_gpu_driver'))
        # Uninstalling this machine also removes what platforms put under
        # pynvml. Below them there is no NVML, even if the machine on which
        # the tests run has it.
        guard = simulator.Machine.load('t4x4').install()
        self.addCleanup(guard.uninstall)
        guard.unload_library()
        gpu_conf.register_opts(cfg.CONF)
        self.useFixture(fixtures.MonkeyPatch(
            'ironic.drivers.modules.inspect_utils._HOOKS_MGR', {}))
        self.config(hooks=_HOOKS, group='inspector')
        baremetal_conf.register_opts(cfg.CONF)
        self.config(enabled_inspect_interfaces=['agent', 'no-inspect'])
        self.hooks = agent.AgentInspect().hooks
        self.node = obj_utils.create_test_node(
            self.context, inspect_interface='agent', resource_class=None,
            properties={'cpu_arch': 'x86_64'})

    def machine(self, name: str) -> simulator.Machine:
        """Become a simulated machine."""
        state = str(self.directory / f'{name}.json')
        self.config(simulate=name, simulate_state=state, group='gpu')
        return simulator.Machine.load(name, state)

    def without_simulation(self, *gpus: str) -> None:
        """Become a machine without NVIDIA's driver.

        :param gpus: device IDs of the GPUs in its sysfs.
        """
        functions = self.directory / 'sys' / 'bus' / 'pci' / 'devices'
        functions.mkdir(parents=True)
        for number, device in enumerate(gpus):
            function = functions / f'0000:{number + 16:02x}:00.0'
            function.mkdir()
            for name, value in (('vendor', '0x10de'), ('class', '0x030200'),
                                ('device', f'0x{device}'),
                                ('subsystem_vendor', '0x10de'),
                                ('subsystem_device', '0x16c1'),
                                ('numa_node', '-1')):
                (function / name).write_text(f'{value}\n')
        self.config(simulate=None, sysfs_root=str(self.directory / 'sys'),
                    group='gpu')

    def sent(self) -> dict:
        """The data that the agent sends about the machine."""
        failures = agent_utils.AccumulatedFailures(
            exc_class=errors.InspectionError)
        data: dict = {}
        for extension in inspector.extension_manager(['nvidia-gpus']):
            extension.plugin(data, failures)
        data['error'] = failures.get_error()
        return json.loads(encoding.RESTJSONEncoder().encode(data))

    def process(self, plugin_data: dict, inventory: dict | None = None
                ) -> None:
        """Run the conductor's inspection hooks on the data."""
        with task_manager.acquire(self.context, self.node.id) as task:
            inspect_utils.run_inspection_hooks(
                task, inventory or {}, plugin_data, self.hooks, None)
        self.node.refresh()

    def inspect(self) -> None:
        """Inspect the machine with the agent and the conductor."""
        self.process(self.sent())

    def add_traits(self, *traits: str) -> None:
        """Add traits to the node, as an operator does."""
        for trait in traits:
            objects.Trait(self.context, node_id=self.node.id,
                          trait=trait).create()

    def add_template(self, name: str, layout: object,
                     step: str = baremetal_inventory.APPLY_LAYOUT
                     ) -> objects.DeployTemplate:
        """Add a deploy template for a layout."""
        template = objects.DeployTemplate(
            self.context, name=name, uuid=str(uuid.uuid4()), extra={},
            steps=[{
                'interface': 'deploy', 'step': step, 'priority': 65,
                'args': {'layout': layout}}])
        template.create()
        return template

    @property
    def traits(self) -> set[str]:
        """All traits of the node."""
        return set(objects.TraitList.get_by_node_id(
            self.context, self.node.id).get_trait_names())

    @property
    def layouts(self) -> set[str]:
        """The node's layout traits."""
        return set(filter(baremetal_inventory.is_layout_trait, self.traits))

    @property
    def others(self) -> set[str]:
        """The node's traits that are not layout traits."""
        return self.traits - self.layouts
