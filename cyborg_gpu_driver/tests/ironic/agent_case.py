# SPDX-License-Identifier: Apache-2.0

"""Run the agent's own code in this process, on a simulated node."""

from __future__ import annotations

import logging
import os
import pathlib
import subprocess

import fixtures

# Must precede the agent's other modules, which read options on import.
from ironic_python_agent import config as agent_config
from ironic_python_agent import hardware
from ironic_python_agent.extensions import clean
from ironic_python_agent.extensions import deploy
from ironic_python_agent.extensions import service
from oslo_config import cfg
from oslo_config import fixture as config_fixture
from oslotest import base

from cyborg_gpu_driver.conf import baremetal
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.ironic import programs
from cyborg_gpu_driver.tests.unit.program import machines

MANAGER = 'NvidiaGpuHardwareManager'
_LSBLK = """\
echo '{{"blockdevices": [{{"kname": "{disk}", "model": "disk", \
"size": 68719476736, "rota": false, "type": "disk", "uuid": null, \
"partuuid": null, "serial": null, "wwn": null, "log-sec": 512, \
"phy-sec": 512, "tran": null}}]}}'
"""


class _Popen(subprocess.Popen):
    """A process that starts without a copy of this large one.

    oslo.concurrency passes a function that restores the handling of SIGPIPE.
    Popen does the same without it, and then need not fork.
    """

    def __init__(self, *args, preexec_fn=None, **kwargs):
        super().__init__(*args, **kwargs)


class AgentCase(base.BaseTestCase):
    """A node that runs its ramdisk.

    ``image`` is the root file system of the deployed image. It is a
    directory, to which the stub of ``mount`` links the mount point.
    """

    MACHINE: str | None = 'a30x4'
    """The simulated machine, or None to use only the files in ``sysfs``."""
    GPUS = 4
    """How many GPUs a simulated machine has at most."""
    DISK = 'disk'
    ROOT = 'disk2'
    """The kernel's name for the second partition of the disk."""

    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        self.log = self.useFixture(fixtures.FakeLogger(
            'cyborg_gpu_driver', level=logging.INFO))
        self.addCleanup(setattr, privileged, '_platform', None)
        self.addCleanup(privileged.privsep.gpu_context.set_client_mode, True)
        if self.MACHINE:
            # Uninstalling it also removes what the agent puts under pynvml.
            guard = simulator.Machine.load('t4x4').install()
            self.addCleanup(guard.uninstall)
        self.disk = self.directory / self.DISK
        self.image = self.directory / self.ROOT
        self.programs = self.directory / 'bin'
        self.programs.mkdir()
        self._write_programs()
        self.useFixture(fixtures.EnvironmentVariable(
            'PATH', str(self.programs)))
        self.useFixture(fixtures.MonkeyPatch(
            'oslo_concurrency.processutils.subprocess.Popen', _Popen))
        self.conf = self.useFixture(config_fixture.Config(cfg.CONF))
        agent_config.populate_config()
        gpu_conf.register_opts(cfg.CONF)
        baremetal.register_opts(cfg.CONF)
        self.conf.config(disk_wait_attempts=0)
        self.conf.config(group='gpu',
                         state_path=str(self.directory / 'state'))
        self.sysfs = self.directory / 'sys'
        (self.sysfs / 'bus/pci/devices').mkdir(parents=True)
        if self.MACHINE:
            self.use(self.MACHINE)
        else:
            self.conf.config(group='gpu', sysfs_root=str(self.sysfs))
            self.restart()

    def use(self, name: str) -> None:
        """Become another node, which has just been switched on."""
        state = str(self.directory / f'{name}.json')
        path = machines.write(self.directory, name, self.GPUS)
        self.machine = simulator.Machine.load(path, state)
        self.conf.config(group='gpu', simulate=path, simulate_state=state)
        self.reboot()

    def restart(self) -> None:
        """Reset the agent's global state, as in a new agent process."""
        for name in ('_global_managers', '_CACHED_HW_INFO', 'NODE'):
            setattr(hardware, name, None)
            self.addCleanup(setattr, hardware, name, None)

    def reboot(self) -> None:
        """Reboot the node into the ramdisk."""
        self.machine.reboot()
        self.restart()

    def make_image(self, *programs: str) -> None:
        """Deploy an image with these programs."""
        (self.image / 'etc/systemd/system').mkdir(parents=True)
        for name in programs:
            path = self.image / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o755)

    def stub(self, name: str, script: str) -> None:
        """Write a stub program that is a shell script."""
        path = self.programs / name
        path.write_text(f'#!/bin/sh\n{script}', encoding='ascii')
        path.chmod(0o755)

    def _write_programs(self):
        programs.write(self.programs, self.image, self.disk, self.image)
        self.stub('lsblk', _LSBLK.format(disk=self.disk))

    def steps(self, kind: str, manager: str = MANAGER,
              properties: dict | None = None) -> list[dict]:
        """The steps of a manager that the agent reports to Ironic.

        :param kind: clean, deploy or service.
        :param properties: properties of the node.
        """
        result = getattr(_EXTENSIONS[kind](), f'get_{kind}_steps')(
            node={'uuid': 'node', 'properties': properties or {},
                  'instance_info': {}}, ports=[])
        self.version = result.command_result['hardware_manager_version']
        return result.command_result[f'{kind}_steps'].get(manager, [])

    def names(self, kind: str, properties: dict | None = None) -> list[str]:
        """The names of this driver's steps, in the order in which they run.
        """
        return [step['step'] for step in sorted(
            self.steps(kind, properties=properties),
            key=lambda step: -step['priority'])]

    def execute(self, kind: str, name: str, properties: dict | None = None,
                **args: object):
        """Execute a step as if Ironic requested it.

        :returns: the result of the step.
        :raises RESTError: if the step fails.
        """
        step = {'step': name, 'interface': 'deploy', 'args': args}
        command = getattr(_EXTENSIONS[kind](), f'execute_{kind}_step')(
            step=step, ports=[],
            node={'uuid': 'node', 'properties': properties or {},
                  'instance_info': {}, f'{kind}_step': step},
            **{f'{kind}_version': hardware.get_current_versions()})
        command.join()
        if command.command_error is not None:
            raise command.command_error
        return command.command_result[f'{kind}_result']

    def clear(self, properties: dict | None = None) -> list[dict]:
        """Remove all GPU partitions, as cleaning does; the result per GPU.
        """
        return self.execute('clean', 'clear_gpu_partitions',
                            properties)['gpus']

    def refused(self, kind: str, name: str, error: type, *words: str,
                **args: object) -> str:
        """Check that a step fails with an error that contains these words.

        :returns: the details of the error.
        """
        caught = self.assertRaises(error, self.execute, kind, name, **args)
        for word in words:
            self.assertIn(word, caught.details)
        return caught.details


_EXTENSIONS = {'clean': clean.CleanExtension,
               'deploy': deploy.DeployExtension,
               'service': service.ServiceExtension}


def read(path: os.PathLike) -> str:
    """The text of a file."""
    return pathlib.Path(path).read_text(encoding='utf-8')
