# SPDX-License-Identifier: Apache-2.0

"""A test server with simulated GPUs, which can boot a ramdisk."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys

import yaml

from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.simulator.machine import machine
from cyborg_gpu_driver.tests import nobody
from cyborg_gpu_driver.tests.ironic import programs
from cyborg_gpu_driver.tests.ironic import ramdisk
from cyborg_gpu_driver.tests.ironic import services

_COLLECTORS = 'default,nvidia-gpus'
_PLUGIN = 'server_of_tests-1.dist-info'


class Server:
    """One server, initially switched off.

    :param directory: an empty directory for this server alone.
    :param gpus: name or file of a simulated machine.
    :ivar gpus: the simulated machine.
    :ivar image: root of the file system that was deployed to its disk. No
        test writes an image, so this directory exists from the start.
    """

    def __init__(self, directory: pathlib.Path, ironic_url: str,
                 gpus: str):
        self.directory = directory
        self.address = ':'.join(('52', '54', '00', *(
            f'{random.randrange(256):02x}' for _ in range(3))))
        self.image = directory / 'image'
        self._machine = gpus
        self._url = ironic_url
        self._process: subprocess.Popen | None = None
        self._log = directory / 'agent.log'
        self._log.touch()
        self._make_files()

    @property
    def in_ramdisk(self) -> bool:
        """Whether the agent is running."""
        return self._process is not None and self._process.poll() is None

    def boot_ramdisk(self, inspects: bool = False) -> None:
        """Switch the server on, so that it boots the ramdisk.

        :param inspects: whether the agent is to inspect the server.
        """
        self.gpus.reboot()
        port = services.free_port()
        services.write_ini(
            self.directory / 'agent.conf', self._configuration(),
            {'DEFAULT': {'listen_port': port, 'advertise_port': port}},
            self._inspection() if inspects else {})
        environment = {
            'HOME': str(self.directory), 'TMPDIR': str(self.directory),
            'LANG': 'C.UTF-8', 'PYTHONWARNINGS': 'ignore',
            ramdisk.ADDRESS: self.address, **services.checkout()}
        with self._log.open('ab') as log:
            self._process = subprocess.Popen(
                [sys.executable, '-m', ramdisk.__name__,
                 str(self.directory)], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env=environment)

    def boot_system(self) -> str:
        """Boot the deployed system, whose systemd unit partitions the GPUs.

        :returns: the output of the unit's command.
        """
        self.gpus.reboot()
        path = self.directory / 'system.conf'
        services.write_ini(path, {'gpu': {
            **self._gpu_options(),
            'state_path': self.image / 'var' / 'lib' / 'cyborg' / 'gpu'}})
        # On a real server the image is the root file system, so the unit
        # needs no --layout-file: the default is this path.
        return subprocess.run(
            [sys.executable, '-m', 'cyborg_gpu_driver.cmd.main',
             '--config-file', str(path), 'firstboot', '--layout-file',
             str(self.image / cleaning.LAYOUT_PATH)],
            check=True, capture_output=True, text=True,
            stdin=subprocess.DEVNULL).stdout

    def switch_off(self) -> None:
        """Switch the server off at once, as if by pulling the plug."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def mig_modes(self) -> list[bool]:
        """Whether MIG mode is on now, for each GPU."""
        with self.gpus.operation():
            return [gpu.state.mig for gpu in self.gpus.gpus]

    def set_mig_modes(self, enabled: bool) -> None:
        """Turn MIG mode on or off on each GPU, as a previous user left it."""
        with self.gpus.operation(write=True):
            for gpu in self.gpus.gpus:
                gpu.state.mig = gpu.state.pending = enabled

    def instances(self) -> list[int]:
        """The number of GPU instances that each GPU has now."""
        with self.gpus.operation():
            return [len(gpu.state.instances) for gpu in self.gpus.gpus]

    def staged_layout(self) -> dict:
        """The layouts that the deployed system applies at boot."""
        unit = self.image / cleaning.WANTS_PATH
        if self.image.joinpath(os.readlink(unit)[1:]).read_text(
                encoding='utf-8') != cleaning.unit_text():
            raise AssertionError(f'{unit} leads to something else')
        return yaml.safe_load((self.image / cleaning.LAYOUT_PATH).read_text(
            encoding='utf-8'))['mig-configs']

    def log(self) -> str:
        """Everything that the agent has logged, over all boots."""
        return self._log.read_text(encoding='utf-8', errors='replace')

    def _configuration(self):
        options = {'DEFAULT': {
            'api_url': self._url, 'listen_host': '127.0.0.1',
            'advertise_host': '127.0.0.1', 'enable_auto_tls': 'false',
            'disk_wait_attempts': 0}}
        options['gpu'] = {**self._gpu_options(),
                          'state_path': self.directory / 'state'}
        return options

    def _gpu_options(self):
        return {'simulate': self._machine,
                'simulate_state': self.directory / 'gpus.json'}

    def _inspection(self):
        return {'DEFAULT': {
            'inspection_callback_url':
                f'{self._url}/v1/continue_inspection',
            'inspection_collectors': _COLLECTORS,
            'inspection_dhcp_wait_timeout': 0}}

    def _make_files(self):
        for name in ('bin', 'state', 'image/etc/systemd/system',
                     'image/usr/bin', f'plugins/{_PLUGIN}'):
            (self.directory / name).mkdir(parents=True)
        command = self.image / 'usr' / 'bin' / 'cyborg-gpu'
        command.touch(0o755)
        programs.write(self.directory / 'bin', self.image)
        plugin = self.directory / 'plugins' / _PLUGIN
        (plugin / 'METADATA').write_text(
            'Metadata-Version: 2.1\nName: server-of-tests\nVersion: 1\n',
            encoding='ascii')
        (plugin / 'entry_points.txt').write_text(
            '[ironic_python_agent.hardware_managers]\n'
            'server = cyborg_gpu_driver.tests.ironic.hardware:ServerManager\n',
            encoding='ascii')
        self.gpus = machine.Machine.load(
            self._machine, str(self.directory / 'gpus.json'))
        if os.geteuid() == 0:
            nobody.give(self.directory)
