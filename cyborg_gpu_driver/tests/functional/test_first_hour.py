# SPDX-License-Identifier: Apache-2.0

"""The first hour of a GPU host that is as NVIDIA and Ubuntu install it.

nvidia-persistenced has every GPU open, nvidia_drm is as the driver's version
has it, no GPU is in MIG mode and none has virtual functions. Each of ``HOURS``
is lived through with two drivers and in three ways: as root, as a user with
the daemon of oslo.privsep, and in a PID namespace of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import re
import sys
from typing import Any

import fixtures

from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.simulator.driver import gpu as driver_gpu
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import base as functional
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import unprivileged

_GPU = '0000:41:00.0'
_ADDRESSES = (_GPU, '0000:42:00.0', '0000:43:00.0', '0000:44:00.0')
_SWITCH = {'address': '0000:0b:00.0', 'vendor': '10de', 'device': '22a3',
           'class': '068000', 'driver': 'nvidia-nvswitch'}
_DRIVERS = {'580': '580.95.05', '595': '595.45.04'}
_WAYS = ('root', 'user', 'namespace')
_MOST_REPORTS = 8


@dataclasses.dataclass(frozen=True)
class Hour:
    """What an operator wants of a new host.

    :param options: of the only policy.
    :param resource: the class of one unit of it.
    :param framework: how the kernel makes vGPUs.
    :param gpus: how many GPUs; several are on an NVSwitch.
    :param dcgm: whether DCGM runs.
    """

    model: str
    options: dict[str, Any]
    resource: str = 'PGPU'
    framework: str = 'none'
    gpus: int = 1
    dcgm: bool = False

    def host(self, version: str, container: bool) -> dict[str, Any]:
        """Return the content of the host's file."""
        link = {'nvlink': 'switches'} if self.gpus > 1 else {}
        return {
            'driver_version': version,
            'container': container, 'dcgm': self.dcgm,
            'fabric_mode': int(self.gpus > 1),
            'nvswitches': [_SWITCH] if link else [],
            'gpus': [{'model': self.model, 'address': address, **link,
                      'framework': self.framework}
                     for address in _ADDRESSES[:self.gpus]]}


_WHOLE = {'mode': 'passthrough'}
_SLICES = {'mode': 'mig', 'profiles': '3g.40gb'}
HOURS = {
    'whole_h100_pcie': Hour('h100-pcie', _WHOLE),
    'whole_a100': Hour('a100-80-pcie', _WHOLE),
    'mig_a100': Hour('a100-80-pcie', _SLICES, 'CUSTOM_NVIDIA_3G_40GB',
                     'mdev'),
    'mig_h100': Hour('h100-pcie', _SLICES, 'CUSTOM_NVIDIA_3G_40GB',
                     'vendor-vfio'),
    'vgpu_a40_mdev': Hour('a40', {'mode': 'vgpu', 'vgpu_types': 'A40-24Q'},
                          'CUSTOM_NVIDIA_A40_24Q', 'mdev'),
    'vgpu_l40s_vfio': Hour('l40s', {'mode': 'vgpu', 'vgpu_types': 'L40S-24Q'},
                           'CUSTOM_NVIDIA_L40S_24Q', 'vendor-vfio'),
    'mig_rtx_pro_6000': Hour(
        'rtx-pro-6000', {'mode': 'mig', 'profiles': '2g.48gb+gfx'},
        'CUSTOM_NVIDIA_2G_48GB_GFX', 'vendor-vfio'),
    'groups_hgx_h100': Hour(
        'h100-80', {'mode': 'nvlink', 'nvlink_sizes': '2'},
        'CUSTOM_NVIDIA_NVLINK_2_H100_80GB_HBM3', gpus=4),
    'whole_l40s_dcgm': Hour('l40s', _WHOLE, dcgm=True),
    'whole_gh200': Hour('gh200', _WHOLE),
}
_LOOK = "run this in the host's PID namespace"
REFUSED = {
    # nvidia_drm has the GPU open by default, and hides other uses of it.
    ('whole_h100_pcie', '595', 'namespace'): _LOOK,
    ('whole_a100', '595', 'namespace'): _LOOK,
    ('whole_gh200', '595', 'namespace'): _LOOK,
    ('groups_hgx_h100', '595', 'namespace'): _LOOK,
    **{('whole_l40s_dcgm', version, way):
       _LOOK if way == 'namespace' else 'stop the unit nvidia-dcgm'
       for version, way in itertools.product(_DRIVERS, _WAYS)},
}
"""What the operator is told to change where nothing can be offered."""
_CASES = [(name, version, way) for (version, way), name in itertools.product(
    itertools.product(_DRIVERS, _WAYS), HOURS)]
_TRIED = _CASES if scope.ALL else [
    ('mig_h100', '580', 'root'), ('vgpu_l40s_vfio', '595', 'root'),
    ('whole_gh200', '595', 'user'), ('whole_l40s_dcgm', '595', 'namespace'),
    ('groups_hgx_h100', '580', 'root')]
"""A case of each mode, of each driver and of each way, and a refused one."""


class FirstHourTest(gpu_cloud.GpuTestCase):

    gpu = _GPU

    def setUp(self):
        self.case = next(case for case in _CASES
                         if self._testMethodName == _test_name(*case))
        self.hour = HOURS[self.case[0]]
        self.is_outside = (self.case[2] == 'user'
                           and self.hardware_directory is None)
        self.log = fixtures.FakeLogger(
            'cyborg_gpu_driver', level=logging.INFO, nuke_handlers=False)
        place = (self.hardware_directory
                 or self.useFixture(fixtures.TempDir()).path)
        self.machine = os.path.join(place, 'host.yaml')
        if self.hardware_directory is None:
            with open(self.machine, 'w', encoding='utf-8') as stream:
                # JSON is YAML.
                json.dump(self.hour.host(_DRIVERS[self.case[1]],
                                         self.case[2] == 'namespace'), stream)
            os.chmod(self.machine, 0o644)
        if self.is_outside:
            functional.TestCase.setUp(self)
        else:
            self.overrides = {'gpu': {'policies': 'one'},
                              'gpu_policy:one': self.hour.options}
            self.useFixture(self.log)
            super().setUp()

    def live(self):
        """Live through the hour of this test."""
        if self.is_outside:
            self.live_as_user()
            return
        self.settle()
        words = REFUSED.get(self.case)
        if words:
            self.assert_refused(words)
        else:
            self.live_well()

    def live_as_user(self):
        if os.geteuid() != 0:
            self.skipTest('only root can fork off a privileged daemon')
        directory = os.path.dirname(self.machine)
        unprivileged.begin(directory)
        done = unprivileged.run(
            directory, self.machine, 'test_first_hour.FirstHourTest.'
            + self._testMethodName)
        self.assertEqual(0, done.returncode, done.stderr)

    def live_well(self):
        before = self.offer()
        self.assertTrue(all(total and not reserved for total, reserved
                            in before.values()) and before, self.log.output)
        profile = self.profile(self.hour.resource)
        server = self.boot(profile)
        self.settle()
        held = self.everything()
        self.restart()
        self.assertEqual(held, self.everything())
        self.reboot(server)
        self.shut_down(server)
        self.cloud.unbind(server)
        self.settle()
        self.assert_clean(before)
        # The next tenant.
        server = self.boot(profile)
        self.shut_down(server)
        self.cloud.unbind(server)
        self.settle()
        self.assert_clean(before)

    def assert_refused(self, words):
        self.assertEqual({}, self.offer())
        lines = self.log.output.splitlines()
        said = {re.sub(r'GPU [0-9a-f:.]+', 'GPU', line) for line in lines
                if 'does not match its policy' in line}
        self.assertEqual(1, len(said), said)
        self.assertIn(words, *said)
        self.assert_unharmed()

    def assert_clean(self, before):
        self.assert_unharmed()
        self.assertEqual(before, self.offer(), self.log.output)
        self.assertEqual([], self.journal())
        self.assertEqual(0, self.handles_in_use())
        self.assertEqual((), self.world.active_partitions)
        for address in _ADDRESSES[:self.hour.gpus]:
            state = self.hardware(address)
            self.assertEqual(([], {}), (state.vgpus, state.instances))
            if self.hour.framework == 'none':
                self.assertEqual(driver_gpu.for_guests(self.world.gpu(address)),
                                 state.driver)

    def assert_unharmed(self):
        world = self.world
        self.assertEqual(((), ()), (world.blocked_unbinds, world.damage))

    def offer(self):
        """Return (total, reserved) of all GPUs' profiles."""
        return {(address, label): amounts
                for address in _ADDRESSES[:self.hour.gpus]
                for label, amounts in self.reserved(address).items()}

    def settle(self):
        """Report until nothing changes any more."""
        known = None
        for _ in range(_MOST_REPORTS):
            known, before = self.everything(), known
            if known == before:
                return
            self.cloud.report()
        self.fail('reports change something each time')

    def restart(self):
        self.end_agent()
        self.settle()

    def reboot(self, server):
        """Start the host and the server's guest again."""
        self.happen('reboot')
        self.end_agent()
        self.restore()
        self.settle()
        for name in self.devices(server):
            self.happen('start_guest', name)

    def boot(self, profile):
        """Create a server and start its guest."""
        server = self.cloud.bind(profile)
        for name in self.devices(server):
            self.happen('start_guest', name)
        return server

    def shut_down(self, server):
        for name in self.devices(server):
            self.happen('stop_guest', name)

    def devices(self, server):
        """Return what libvirt gives to the guest of a server."""
        if self.hour.framework != 'none':
            return [vgpu.uuid or vgpu.function
                    for vgpu in self.hardware().vgpus]
        (arq,) = server.arqs
        info = arq['attach_handle_info']
        if 'addresses' in info:
            return [str(gpu) for gpu in nvlink.from_text(info['addresses'])]
        return ['{domain}:{bus}:{device}.{function}'.format(**info)]


def _test_name(name, version, way):
    return f'test_{name}_{version}_{way}'


def _make(case):
    def test(self):
        self.live()
        print(*case, REFUSED.get(case, 'right'), file=sys.stderr)
    return test


for _case in _TRIED:
    setattr(FirstHourTest, _test_name(*_case), _make(_case))
