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


"""The reader returns a snapshot for any files, names and links in sysfs.

The tests record every path that is opened. No path leads out of the tree.
"""

import collections
import posixpath
import re
import uuid

import hypothesis
from hypothesis import strategies

from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.program.steps import vfio
from cyborg_gpu_driver.simulator import platform as simulated
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.fuzz import base

_UUID = '7f3b1c0e-5b6a-4d0f-9a53-0d4d8e1f2a3b'
_BYTES = strategies.one_of(
    strategies.binary(max_size=12),
    base.TEXTS.map(lambda line: f'ID : vGPU Name\n{line}'.encode(
        'utf-8', 'replace')), strategies.sampled_from((
        b'', b'\n', b'0x10de', b'0x030200', b'0x', b'-1', b'0', b'1', b'99',
        b'1' * 5000, b'1_0', '\u0663'.encode(), '\xb2'.encode(), b'nvidia',
        b'none', b'\xff\xff', b'65535', b'4294967295', b'..', b'../../x',
        b'ID : vGPU Name\n' + b'1' * 5000 + b' : x', b'ID : vGPU Name\n1 2',
        b'ID : vGPU Name', b'max_instance=' + b'9' * 5000,
        b'framebuffer=' + b'9' * 5000 + b'M', b'0x' + b'f' * 5000)))
_NAMES = strategies.one_of(
    base.TEXTS, strategies.sampled_from((
        '0000:99:00.0', '0000:07:00.0', '0000:07:00.7', 'nvidia-\xb2',
        'nvidia-' + '1' * 5000, 'nvidia-', 'x', _UUID, '...')))
_TARGETS = strategies.one_of(
    base.TEXTS, strategies.lists(_NAMES, max_size=3).map('/'.join),
    strategies.sampled_from((
        '..', '../..', '/', '', '../../../etc', '../0000:07:00.4',
        f'0000:07:00.4/{_UUID}', '../../x/nvidia', '../nvidia-474')))


class FuzzedOs:
    """A simulated machine's sysfs with some contents changed.

    ``files``, ``names`` and ``links`` hold the changes, by path. ``seen``
    holds the paths of each kind, from which a test chooses. A changed link
    changes the answer of ``readlink``, not where the link leads.
    """

    def __init__(self, machine):
        self._os = machine.os
        self._data = {}
        self.files = {}
        self.names = {}
        self.links = {}
        self.seen = {'files': set(), 'names': set(), 'links': set()}
        self.outside = set()

    def _note(self, kind, path):
        if (posixpath.normpath(path) != path or '\0' in path
                or not path.startswith(simulated.simulated.ROOT + '/')):
            self.outside.add(path)
        self.seen[kind].add(path)

    def open(self, path, flags, mode=0o777):
        self._note('files', path)
        descriptor = self._os.open(path, flags, mode)
        if path in self.files:
            self._data[descriptor] = self.files[path]
        return descriptor

    def read(self, descriptor, length):
        if descriptor in self._data:
            return self._data[descriptor][:length]
        return self._os.read(descriptor, length)

    def write(self, descriptor, data):
        return self._os.write(descriptor, data)

    def close(self, descriptor):
        self._data.pop(descriptor, None)
        self._os.close(descriptor)

    def listdir(self, path):
        self._note('names', path)
        return [*self._os.listdir(path), *self.names.get(path, ())]

    def readlink(self, path):
        self._note('links', path)
        if path in self.links:
            return self.links[path]
        return self._os.readlink(path)

    def stat(self, path):
        self._note('links', path)
        return self._os.stat(path)


class SysfsTest(base.FuzzCase):
    """A machine with vGPUs, and its snapshots."""

    def load(self, name):
        machine = simulator.Machine.load(name)
        self.addCleanup(machine.install().uninstall)
        self.os = FuzzedOs(machine)
        self.platform = platform.Platform(
            sysfs=pci.Sysfs('/sys', os_module=self.os),
            nvml=nvml.NvmlSession(), simulated=True,
            vfio_holders=machine.vfio_holders)
        self.make_vgpus()
        self.look()
        self.paths = {kind: _alike(paths)
                      for kind, paths in self.os.seen.items()}

    def make_vgpus(self):
        """Create a vGPU of any type on each GPU that takes one."""
        made = 0
        for gpu in reader.HostReader(self.platform).snapshot().gpus:
            for function in (gpu, *gpu.vfs):
                place = ('bus', 'pci', 'devices', str(function.address))
                types = [item.type_id for item in function.mdev_types
                         if item.available]
                if types:
                    self.platform.sysfs.write(
                        str(uuid.UUID(int=made)), *place,
                        'mdev_supported_types', types[0], 'create')
                elif getattr(function, 'creatable_types', None):
                    self.platform.sysfs.write(
                        str(function.creatable_types[0]), *place, 'nvidia',
                        'current_vgpu_type')
                else:
                    continue
                made += 1
                break
        self.assertGreater(made, 0)

    def look(self):
        """Take two snapshots. The second reads what the first did not keep."""
        read = reader.HostReader(self.platform)
        for _ in range(2):
            host = read.snapshot(detail=True)
            for gpu in host.gpus:
                self.assertIsInstance(str(gpu.problems), str)
                for mode in policy.Mode:
                    self.attempt(offers.offers, gpu, policy.Policy(
                        'a', mode))
                for function in gpu.vfs[:2]:
                    self.attempt(vfio.type_on, self.platform,
                                 function.address)
                    self.attempt(vfio.instance_under, self.platform,
                                 function.address)
        self.assertEqual(set(), self.os.outside)

    def fuzz(self, data):
        """Change a few of the things that are read."""
        for kind, values in (('files', _BYTES), ('links', _TARGETS), (
                'names', strategies.lists(_NAMES, max_size=3))):
            paths = data.draw(strategies.lists(
                strategies.sampled_from(self.paths[kind]).flatmap(
                    strategies.sampled_from), max_size=4))
            setattr(self.os, kind, {path: data.draw(values)
                                    for path in paths})
        self.look()

    def test_snapshots(self):
        """mdevs on virtual functions, mdevs on GPUs, and the vendor's VFIO."""
        for name in ('mixed', 't4x4', 'a100x4-vfio'):
            with self.subTest(name):
                self.load(name)
                base.examples(40)(hypothesis.given(strategies.data())(
                    self.fuzz))()


def _alike(paths):
    """Group the paths whose last components differ only in numbers.

    Each kind of file is to be chosen as often, however many files it has.
    """
    found = collections.defaultdict(list)
    for path in sorted(paths):
        found[re.sub('[0-9]+', '', path.rpartition('/')[2])].append(path)
    return list(found.values())
