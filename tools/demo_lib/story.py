# SPDX-License-Identifier: Apache-2.0


"""What the demonstration does, part by part."""

from __future__ import annotations

import dataclasses

from demo_lib import cloud
from demo_lib import nova_part
from demo_lib import operator
from demo_lib import screen

MACHINE = 'mixed'
VGPU_TYPE = 'T4-4Q'
_T4 = '0000:3b:00.0'
_A100 = '0000:41:00.0'
_SLICES = ('3g.40gb', '2g.20gb', '1g.10gb')

CONFIGURATION = {
    'gpu': {'policies': 'shared,sliced,whole'},
    'gpu_policy:shared': {'match_model': '*T4*', 'mode': 'vgpu',
                          'vgpu_types': VGPU_TYPE},
    'gpu_policy:sliced': {'match_model': '*A100*', 'mode': 'mig',
                          'profiles': ','.join(_SLICES)},
    'gpu_policy:whole': {'mode': 'passthrough'},
}
"""What an operator would write for the machine."""


class Broken(Exception):
    """Something was not as expected; the message says what."""


@dataclasses.dataclass(frozen=True)
class Before:
    """The state that must be restored at the end."""

    placement: dict
    machine: dict


class Story:
    """The demonstration on a running cloud.

    Each part raises :class:`Broken`, or an error of the APIs, if something
    is not as expected.
    """

    def __init__(self, running: cloud.Cloud, hand: operator.Operator,
                 output: screen.Screen):
        self._cloud = running
        self._operator = hand
        self._screen = output
        self._servers: list[nova_part.Server] = []

    def tell(self) -> None:
        """Run the whole demonstration."""
        self._look_around()
        before = self._report()
        self._create_device_profiles()
        self._boot_whole()
        self._boot_shared()
        self._boot_slices()
        self._delete_servers()
        self._prove(before)

    def _look_around(self):
        self._screen.heading('A simulated compute node: one GPU of each kind')
        self._screen.block(self._operator.text(
            'gpu', 'list', '-c', 'address', '-c', 'model', '-c', 'mode',
            '-c', 'health'))

    def _report(self):
        self._screen.heading('cyborg-agent reports what it can offer')
        # The first report creates the providers, the next one compares what
        # is reserved on them.
        for _ in range(2):
            self._cloud.report()
        self._show_inventories('_gpu_')
        return Before(self._cloud.placement.snapshot(),
                      self._operator.machine())

    def _create_device_profiles(self):
        self._screen.heading('The administrator creates device profiles')
        profiles = {
            'whole-h100': {'resources:PGPU': '1',
                           'trait:CUSTOM_GPU_ARCH_HOPPER': 'required'},
            'whole-a40': {'resources:PGPU': '1',
                          'trait:CUSTOM_NVIDIA_2235': 'required'},
            _profile(VGPU_TYPE): {_resource(VGPU_TYPE): '1'},
            **{_profile(name): {_resource(name): '1'} for name in _SLICES}}
        for name, group in profiles.items():
            self._cloud.cyborg.create_device_profile(name, group)
            self._screen.line('%-14s %s' % (name, ', '.join(
                f'{key}={value}' for key, value in group.items())))

    def _boot_whole(self):
        self._screen.heading(
            'Servers with a whole GPU (the A40 is unknown to NVML)')
        for name in ('whole-h100', 'whole-a40'):
            arq = self._boot(name)
            _expect(arq['attach_handle_type'] == 'PCI',
                    f'the handle of {name} is {arq["attach_handle_type"]}')

    def _boot_shared(self):
        self._screen.heading('A server with a vGPU of the T4')
        self._expect_mdev(_T4, self._boot(_profile(VGPU_TYPE)))
        self._screen.block(self._operator.map())

    def _boot_slices(self):
        self._screen.heading(
            'Servers with MIG slices of the A100, created when they are bound')
        for name in _SLICES:
            self._expect_mdev(_A100, self._boot(_profile(name)))
            self._screen.block(self._operator.map())
        smallest = _profile(_SLICES[-1])
        while self._cloud.nova.candidates(smallest):
            self._expect_mdev(_A100, self._boot(smallest))
            self._screen.block(self._operator.map())
        self._refuse(smallest)

    def _refuse(self, profile):
        try:
            self._cloud.nova.create_server(profile)
        except nova_part.NoCandidates:
            self._screen.line(f'One more {profile}: Placement has no '
                              'candidate left, because everything is '
                              'reserved or used:')
            self._show_inventories(_A100)
        else:
            raise Broken(f'one {profile} too many was bound')

    def _delete_servers(self):
        self._screen.heading('All servers are deleted')
        for server in self._servers:
            self._cloud.nova.delete_server(server.uuid)
            self._screen.line(f'deleted {server.uuid} '
                              f'({server.device_profile})')
        self._screen.block(self._operator.map())

    def _prove(self, before):
        self._screen.heading('Everything is as before')
        left = self._cloud.cyborg.arqs()
        _expect(not left, f'accelerator requests are left: {left}')
        self._screen.proof('Cyborg has no accelerator request')
        used = self._cloud.handles_in_use()
        _expect(not used, f'attach handles are still in use: {used}')
        self._screen.proof('Cyborg has no attach handle in use')
        _compare('Placement', before.placement,
                 self._cloud.placement.snapshot())
        self._screen.proof(
            f'{len(before.placement)} providers in Placement: inventories, '
            'reserved, usages and traits')
        self._cloud.report()
        _compare('Placement', before.placement,
                 self._cloud.placement.snapshot())
        self._screen.proof('and the next report changes none of it')
        _compare('GPU', before.machine, self._operator.machine())
        self._screen.proof(f'{len(before.machine)} GPUs: GPU instances, '
                           'mdevs and modes')

    def _boot(self, device_profile):
        server = self._cloud.nova.create_server(device_profile)
        self._servers.append(server)
        (arq,) = server.arqs
        self._screen.line(f'server {server.uuid} ({device_profile})')
        handle = arq['attach_handle_type']
        if handle == 'PCI':
            handle += ' {domain}:{bus}:{device}.{function}'.format(
                **arq['attach_handle_info'])
        self._screen.line(f'  accelerator request {arq["uuid"]}: '
                          f'{arq["state"]}')
        self._screen.line(f'  attach handle: {handle}')
        _expect(arq['state'] == 'Bound', f'{arq["uuid"]} is {arq["state"]}')
        return arq

    def _expect_mdev(self, address, arq):
        """Check that the handle's UUID is that of an mdev of the GPU."""
        found = {mdev['uuid']: mdev['name'] for mdev in self._operator.data(
            'gpu', 'show', address)['mdevs']}
        handle = arq['attach_handle_uuid']
        _expect(handle in found, f'GPU {address} has no mdev {handle}')
        self._screen.line(f'  mdev {handle} ({found[handle]})')

    def _show_inventories(self, part):
        rows, host = [], f'{self._cloud.host}_'
        for name, provider in sorted(
                self._cloud.placement.snapshot().items()):
            if part in name:
                rows.extend(
                    (name.removeprefix(host), resource_class,
                     inventory['total'],
                     inventory['reserved'], provider['usages'].get(
                         resource_class, 0))
                    for resource_class, inventory
                    in provider['inventories'].items())
        self._screen.table((f'provider of {self._cloud.host}',
                            'resource class', 'total', 'reserved', 'used'),
                           rows)


def _expect(condition, otherwise):
    if not condition:
        raise Broken(otherwise)


def _compare(what, before, after):
    changed = sorted(name for name in before.keys() | after.keys()
                     if before.get(name) != after.get(name))
    _expect(not changed, '; '.join(
        f'{what} {name} was {before.get(name)} and is {after.get(name)}'
        for name in changed))


def _profile(name):
    """Return the device profile's name for a MIG profile or vGPU type."""
    return name.lower().replace('.', '-')


def _resource(name):
    return 'resources:CUSTOM_NVIDIA_' + name.upper().replace(
        '.', '_').replace('-', '_')
