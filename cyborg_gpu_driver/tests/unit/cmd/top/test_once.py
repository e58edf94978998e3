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


from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import os
import uuid

import fixtures
import pynvml
from oslo_config import cfg

from cyborg_gpu_driver.cmd.context import host_view
from cyborg_gpu_driver.cmd.top import frame as frames
from cyborg_gpu_driver.cmd.top import load as loads
from cyborg_gpu_driver.cmd.top import source
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import telemetry
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import health as health_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import command
from cyborg_gpu_driver.tests.unit.cmd import base

_MIB = 2 ** 20
_2G = 5
"""The driver's ID of the profile 2g.12gb on these A30s."""
_SERVER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a11'
_ARQ = '0d7e5b36-92a4-4c37-8b0f-3b8e7f0a1c55'


class OnceTest(base.CommandCase):
    """``top --once`` on hosts with records."""

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.use('a30x4')

    def use(self, name):
        self.state = os.path.join(self.directory, name)
        self.records = f'{self.state}.records'
        self.host = ('--simulate', name, '--state', self.state)
        # The addresses of all GPUs of the host, in order.
        self.addresses = [model.PciAddress.parse(row['address'])
                          for row in self.rows(*self.host, 'gpu', 'list')]

    def once(self, *arguments):
        output, errors = self.run_program(*self.host, 'top', '--once',
                                          *arguments)
        return output.splitlines(), errors

    def parts(self):
        return [row for row in self.rows(*self.host, 'top', '--once')
                if row['kind'] != 'gpu']

    def claim(self, handle, row, phase=gpu_record.Phase.BOUND, **parts):
        """Record the owner of a GPU instance from ``instance list``."""
        address = model.PciAddress.parse(row['address'])
        journal.Journal(self.records).put(gpu_record.Claim(**{
            'handle': handle, 'gpu': address, 'function': address,
            'mdev_type': 'nvidia-474', 'profile': row['profile'],
            'phase': phase, 'profile_id': _2G, 'instance_id': row['id'],
            'placement': model.Placement(row['start'], row['size']),
            'since': 1.0, **parts}))

    def own(self, handle):
        keeper = state.Keeper(self.records, 'host1')
        keeper.set(owners={**keeper.owners,
                           handle: state.Owner(_ARQ, _SERVER, 1.0)})
        keeper.write()

    def instance(self, profile='2g.12gb'):
        self.run_program(*self.host, 'instance', 'create', '0', profile)
        (row,) = [row for row in self.rows(*self.host, 'instance', 'list')
                  if row['profile'] == profile]
        return row

    def test_a_host_without_servers(self):
        lines, errors = self.once()
        self.assertEqual('', errors)
        self.assertEqual(
            'GPU  SLICE OR VGPU       SERVER, OR *ATTACH HANDLE'
            '              UTIL  MEMORY GiB', lines[0])
        # nvml.h: NVML reports no utilisation for a GPU in MIG mode.
        self.assertEqual([
            f'{number:>3}  {address}  A30  mig, 4 slices free'
            '                              0.6/24.0'
            for number, address in enumerate(self.addresses)], lines[1:])
        self.assertEqual(80, max(map(len, lines)))

    def test_a_slice_and_its_server(self):
        handle = str(uuid.uuid4())
        row = self.instance()
        self.claim(handle, row)
        lines, _ = self.once()
        self.assertTrue(lines[2].startswith(
            f'     {"2g.12gb":20}*{handle} '), lines)
        self.own(handle)
        lines, _ = self.once()
        self.assertTrue(lines[2].startswith(
            f'     {"2g.12gb":20}{_SERVER} '), lines)
        (found,) = self.parts()
        self.assertEqual(
            ('gpu_instance', 'bound', row['id'], row['start'], row['size'],
             _SERVER, handle, _ARQ),
            tuple(found[name] for name in (
                'kind', 'state', 'gpu_instance_id', 'start', 'size',
                'server', 'handle', 'arq')))
        self.assertGreater(found['memory_mib'], 10000)

    def test_an_instance_that_is_made_again_has_no_server(self):
        self.claim(str(uuid.uuid4()), self.instance(), profile_id=0)
        live, claimed = self.parts()
        self.assertEqual(('created', None), (live['state'], live['handle']))
        self.assertEqual('bound', claimed['state'])

    def test_a_bind_that_has_begun(self):
        self.claim(str(uuid.uuid4()), {
            'address': str(self.addresses[1]), 'profile': '1g.6gb',
            'id': None, 'start': 0, 'size': 1},
            gpu_record.Phase.BINDING)
        lines, _ = self.once()
        self.assertTrue(lines[3].startswith(
            f'     {"1g.6gb":20}binding *'), lines)

    def test_a_gpu_that_cannot_be_read_keeps_its_servers(self):
        handle = str(uuid.uuid4())
        self.claim(handle, self.instance())
        self.load().lose_gpu(str(self.addresses[0]))
        lines, _ = self.once()
        self.assertIn('lost', lines[1])
        self.assertIn(handle, '\n'.join(lines))

    def load(self):
        """The simulated host, for events that only hardware causes."""
        return simulator.Machine.load(self.host[1], self.state)

    def test_whole_gpus_and_what_else_is_known(self):
        self.use('mixed')
        records = store.of(self.records)
        records.put(self.addresses[0], tenancy=cleaning.Known(
            cleaning.State.USED, (_SERVER,)), cordons=(
                cordon.Cordon(cordon.Source.HEALTH),))
        records.put(self.addresses[2], tenancy=cleaning.Known(
            cleaning.State.STUCK, (_SERVER,)),
            reported=gpu_record.Reported(
                '1eb8', 'passthrough', gpu_record.ReportedFacts(), {}),
            health=health_record.HealthRecord(
                'boot', None, (health.Condition('XID_79', 1.0, 2.0),)))
        lines, _ = self.once()
        self.assertIn('Tesla T4  passthrough, cordoned', lines[1])
        self.assertEqual(f'     {"passthrough":20}{_SERVER}', lines[2])
        # The figures leave no room for these states in the GPU's line.
        self.assertEqual('     unhealthy, waits for a reset', lines[5])
        self.assertIn('passthrough, bound to vfio-pci', lines[6])

    def test_time_sliced_vgpus(self):
        self.use('t4x4')
        address = self.addresses[0]
        handle, other = str(uuid.uuid4()), str(uuid.uuid4())
        simulated = self.load().os
        for name in (handle, other):
            create = simulated.open(
                f'/sys/bus/pci/devices/{address}/mdev_supported_types/'
                'nvidia-232/create', os.O_WRONLY)
            simulated.write(create, name.encode())
            simulated.close(create)
        journal.Journal(self.records).put(gpu_record.Claim(
            handle, address, address, 'nvidia-232', 'T4-4Q',
            gpu_record.Phase.BOUND, since=1.0))
        found = {row['state']: row for row in self.parts()}
        self.assertEqual({'bound', 'created'}, set(found))
        self.assertEqual((handle, 'vgpu', str(address), None, None), tuple(
            found['bound'][name] for name in (
                'handle', 'kind', 'function', 'server',
                'utilization_percent')))
        hardware = self.load()
        hardware.work(str(address), gpu=73)
        hardware.start_guest(handle, _SERVER)
        hardware.work_vgpu(handle, 1024, (40, 20, 0, 0))
        lines, _ = self.once()
        self.assertRegex(lines[1], r'T4  .* 73% +0\.[0-9]/15\.0$')
        self.assertRegex('\n'.join(lines), _SERVER + ' +40% +1.0/4.0')
        found = {row['state']: row for row in self.parts()}
        self.assertEqual((_SERVER, 40, 1024, 4096), tuple(
            found['bound'][name] for name in (
                'server', 'utilization_percent', 'memory_used_mib',
                'memory_mib')))

    def test_a_bad_record_is_named_and_hides_no_gpu(self):
        os.makedirs(os.path.join(self.records, 'gpus'))
        path = os.path.join(self.records, 'gpus',
                            f'{self.addresses[0]}.json')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('{')
        lines, errors = self.once()
        self.assertEqual(5, len(lines))
        self.assertIn(path, errors)

    def test_formats(self):
        self.instance()
        text, _ = self.run_program(*self.host, 'top', '--once', '-f', 'csv')
        rows = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual(['gpu', 'gpu_instance', 'gpu', 'gpu', 'gpu'],
                         [row['kind'] for row in rows])
        self.assertEqual('', rows[0]['server'])
        lines, _ = self.once('--long')
        self.assertIn('| gpu_instance_id |', lines[1])
        lines, _ = self.once('-c', 'name', '-c', 'kind')
        self.assertIn('| kind ', lines[1])
        lines, _ = self.once('--max-width', '59')
        self.assertNotIn('MEMORY', lines[0])
        lines, _ = self.once('--max-width', '30')
        self.assertEqual(30, max(map(len, lines)))


class OptionsTest(base.CommandCase):

    def refuse(self, *arguments, code=1):
        output, errors = self.run_program('--simulate', 'a30x4', 'top',
                                          *arguments, code=code)
        self.assertEqual('', output)
        return errors

    def test_the_interval_is_bounded(self):
        for text in ('0', '-1', '3601', 'soon', '1.5', ''):
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                end = self.assertRaises(
                    SystemExit, command.run, '--simulate', 'a30x4', 'top',
                    f'--interval={text}')
            self.assertEqual(2, end.code)

    def test_what_needs_once(self):
        for arguments, name in ((('-f', 'json'), "--format 'json'"),
                                (('--long',), '--long'),
                                (('-c', 'name'), "--column 'name'")):
            errors = self.refuse(*arguments)
            self.assertIn(name, errors)
            self.assertIn('it needs --once', errors)

    def test_no_terminal(self):
        self.assertIn('is not a terminal; give --once for a table',
                      self.refuse())


class SourceTest(base.CommandCase):

    def setUp(self):
        super().setUp()
        self.conf = cfg.ConfigOpts()
        gpu_conf.register_opts(self.conf)
        self.conf.register_opt(cfg.HostAddressOpt('host', default='host1'))
        self.conf([], default_config_files=[])
        self.path = self.useFixture(fixtures.TempDir()).path
        for name, value in (('simulate', 'a30x4'), ('state_path', self.path)):
            self.conf.set_override(name, value, group='gpu')
        self.view = host_view.HostView(self.conf)
        self.source = source.Source(self.view, lambda: 7.0)
        self.machine = pynvml.nvmlLib.machine
        self.addCleanup(self.machine.uninstall)

    def test_a_reading_leaves_no_gpu_open(self):
        found = self.source.read()
        self.assertEqual(('host1', 7.0, 4, ()), (
            found.hostname, found.time, len(found.blocks), found.messages))
        self.assertFalse(self.view.platform.nvml.gate.is_open)
        for block in found.blocks:
            self.assertNotIn(os.getpid(), dict(self.machine.holders(
                str(block.gpu.address))))

    def test_nothing_is_written(self):
        self.source.read()
        self.assertEqual([], os.listdir(self.path))

    def test_a_hung_gpu_costs_a_short_time_once(self):
        self.assertLessEqual(self.view.platform.nvml.timeout, 5)


class LoadTest(base.CommandCase):
    """The GPU, instance, vGPU or server to which a sample's value belongs."""

    def loads(self, *values):
        return loads.Loads(
            telemetry.Value(loads.Quantity[name], value, tuple(labels))
            for name, value, *labels in values)

    def test_nothing_is_known(self):
        found = self.loads()
        for load in (found.gpu(), found.instance(1), found.mdev('m'),
                     found.server('s')):
            self.assertEqual(loads.UNKNOWN, load)

    def test_an_instance_and_the_vgpu_on_it(self):
        memory = (('INSTANCE_MEMORY', 8 * _MIB, '3'),
                  ('INSTANCE_MEMORY_USED', 2 * _MIB, '3'))
        self.assertEqual(loads.Load(None, 2, 8),
                         self.loads(*memory).instance(3))
        vgpu = ('VGPU_UTILIZATION', 0.5, '3', '7', '', _SERVER)
        self.assertEqual(loads.Load(50, 2, 8, _SERVER),
                         self.loads(*memory, vgpu).instance(3))
        # It is unknown which of two vGPUs the row is about.
        other = ('VGPU_UTILIZATION', 0.5, '3', '8', '', _ARQ)
        self.assertEqual(loads.Load(None, 2, 8),
                         self.loads(*memory, vgpu, other).instance(3))

    def test_the_newest_of_several_samples(self):
        labels = '', '7', 'm', ''
        self.assertEqual(loads.Load(20, 4), self.loads(
            ('VGPU_FRAMEBUFFER_USED', 4 * _MIB, *labels),
            ('VGPU_UTILIZATION', 0.1, *labels),
            ('VGPU_UTILIZATION', 0.2, *labels)).mdev('m'))

    def test_a_server_with_two_vgpus(self):
        found = self.loads(*(('VGPU_UTILIZATION', 0.1, '', number, '', _SERVER)
                             for number in '78'))
        self.assertEqual(loads.UNKNOWN, found.server(_SERVER))


class OrderTest(base.CommandCase):

    def block(self, number, *parts):
        address = model.PciAddress.parse(f'0000:0{number}:00.0')
        return frames.Block(
            model.Gpu(address, '10de', '20b7', '0302'), number, None, (),
            tuple(frames.Part(frames.Kind.VGPU, name, 'bound', server=server)
                  for name, server in parts))

    def order(self, order):
        return [(block.index, *[(part.name, part.server)
                                for part in block.parts])
                for block in frames.ordered((
                    self.block(0), self.block(1, ('b', None), ('d', 'y')),
                    self.block(2, ('c', 'x'), ('a', 'z'))), order)]

    def test_by_load(self):
        def loaded(percent, memory):
            return loads.Load(percent, memory)

        idle, whole, sliced = (
            dataclasses.replace(self.block(number), load=load)
            for number, load in enumerate((
                loaded(0, 9), loaded(None, None), loaded(None, 5))))
        parts = tuple(frames.Part(frames.Kind.VGPU, name, 'bound', load=load)
                      for name, load in (('a', loaded(1, None)),
                                         ('b', loaded(80, 7)),
                                         ('c', loaded(None, 8))))
        blocks = idle, whole, dataclasses.replace(sliced, parts=parts)
        for order, gpus, names in (
                (frames.Order.UTILIZATION, [2, 0, 1], 'bac'),
                (frames.Order.MEMORY, [0, 2, 1], 'cba')):
            found = {block.index: block for block
                     in frames.ordered(blocks, order)}
            self.assertEqual(gpus, list(found))
            self.assertEqual(names, ''.join(
                part.name for part in found[2].parts))

    def test_by_server(self):
        self.assertEqual([(2, ('c', 'x'), ('a', 'z')),
                          (1, ('d', 'y'), ('b', None)), (0,)],
                         self.order(frames.Order.SERVER))

    def test_by_name(self):
        self.assertEqual([(2, ('a', 'z'), ('c', 'x')),
                          (1, ('b', None), ('d', 'y')), (0,)],
                         self.order(frames.Order.NAME))

    def test_by_gpu(self):
        self.assertEqual([0, 1, 2], [
            row[0] for row in self.order(frames.Order.GPU)])

    def test_each_order_has_its_turn(self):
        found = [frames.Order.GPU]
        while found[-1].next is not frames.Order.GPU:
            found.append(found[-1].next)
        self.assertEqual(list(frames.Order), found)
