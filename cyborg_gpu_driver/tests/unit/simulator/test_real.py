# SPDX-License-Identifier: Apache-2.0

"""The simulated boards answer as the real ones that we have seen.

Each file of ``tests/data/real`` is what ``tools/hardware-check --anonymise``
wrote on a machine. Here it runs on the simulated board of the same PCI ids.
"""

import dataclasses
import io
import json
import pathlib

import pynvml
from oslotest import base

from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests.unit.tools import documents
from cyborg_gpu_driver.tests.unit.tools import test_checks

DATA = documents.ROOT / 'cyborg_gpu_driver' / 'tests' / 'data' / 'real'
_STAGES = ('product', 'mig', 'sweep', 'links', 'vgpu')
"""The stages that are compared.

Not among them is "nobody", of a user without rights: both boards answer him
about GPU instances as they answer root. The simulator refuses, as nvml.h says.
"""

_STATES = frozenset({
    'nvmlDeviceGetClockInfo',
    'nvmlDeviceGetCurrentClocksEventReasons', 'nvmlDeviceGetMemoryInfo',
    'nvmlDeviceGetPersistenceMode', 'nvmlDeviceGetPowerUsage',
    'nvmlDeviceGetTemperature'})
"""Calls whose answer depends on the moment: it matters only that there is
one. The total among them is compared too."""
_STATE_FIELDS = frozenset({
    pynvml.NVML_FI_DEV_MEMORY_TEMP,
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
    pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES})

_DELIBERATE = {
    # The module id is that of a place on the baseboard, and a machine that
    # has the board without its NVSwitches has no baseboard here.
    'nvmlDeviceGetModuleId': None,
    # The library reads the clocks 1 and 2 only.
    'nvmlDeviceGetClockInfo': {'[0]', '[3]'},
    # The real library leaves the name of version 3 empty or hardware-check
    # lost it: it asked twice with one structure. The simulator fills it in.
    'nvmlDeviceGetGpuInstanceProfileInfoV': None,
}
"""Calls, or their arguments, in which the simulator differs on purpose."""

_FILES = ('class', 'device', 'reset_method', 'subsystem_device',
          'subsystem_vendor', 'vendor')
_PRESENT = ('config', 'current_link_width', 'reset',
            'sriov_numvfs', 'sriov_totalvfs')
"""Files of a PCI function."""


def _answer(record):
    return record['error']['symbol'] if 'error' in record else (
        record['result'])


def _key(record):
    return (record['stage'], record['call'], json.dumps(record['args'][1:])
            if record['args'][:1] == ['gpu:0'] else '')


class TestReal(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.check = test_checks.script('hardware-check')

    def recorded(self):
        """Generate each file with a machine that has the same board."""
        paths = sorted(DATA.glob('*.json'))
        self.assertNotEqual([], paths)
        for path in paths:
            found = self.check.loads(path)
            yield path.name, found, machine_module.Machine(_host(found))

    def simulated(self, machine):
        """Return the records that hardware-check makes on a machine."""
        records = {}
        with machine:
            for name in _STAGES:
                stream = io.StringIO()
                self.check.STAGES[name][0](
                    self.check.Report(name, set(), stream))
                for line in map(json.loads, stream.getvalue().splitlines()):
                    if 'record' in line:
                        record = self.check.clean(line['record'], str)
                        records.setdefault(_key(record), []).append(record)
        return records

    def test_each_call_answers_as_the_real_one(self):
        for name, found, machine in self.recorded():
            simulated = self.simulated(machine)
            compared, different = 0, []
            for record in found['calls']:
                others = simulated.get(_key(record))
                if not others:
                    continue
                other = others.pop(0)
                if not self.is_compared(record, other):
                    continue
                compared += 1
                if not _equal(record, other):
                    different.append((record['call'], record['args'],
                                      _answer(record), _answer(other)))
            self.assertEqual([], different, name)
            self.assertGreater(compared, 100)

    def is_compared(self, record, other):
        if _answer(other) == 'FUNCTION_NOT_FOUND':
            return False
        if record['call'] not in _DELIBERATE:
            return True
        which = _DELIBERATE[record['call']]
        return which is not None and _key(record)[2] not in which

    def test_each_field_that_is_simulated_exists(self):
        for name, found, machine in self.recorded():
            values = {item['id']: item for record in found['calls']
                      if record['call'] == 'nvmlDeviceGetFieldValues'
                      for item in record['result']}
            with machine:
                pynvml.nvmlInit()
                device = pynvml.nvmlDeviceGetHandleByIndex(0)
                seen = {item.fieldId: item for item in (
                    pynvml.nvmlDeviceGetFieldValues(device, list(values)))}
            answered = {number for number, item in seen.items()
                        if not item.nvmlReturn}
            self.assertEqual(set(), {
                number for number in answered if values[number]['code']}, name)
            self.assertEqual({}, {
                number: values[number]['value']
                for number in answered - _STATE_FIELDS
                if values[number]['value'] != self.check.field(seen[number])},
                name)
            self.assertNotEqual(set(), answered)

    def test_the_files_of_the_pci_function(self):
        for name, found, machine in self.recorded():
            address = machine.gpus[0].address
            real = found['facts']['pci'][f'pci/{address}']
            sysfs = platform.open_platform(machine).sysfs
            self.addCleanup(machine.uninstall)
            place = ('bus', 'pci', 'devices', address)
            self.assertEqual(
                {file: real['values'][file] for file in _FILES},
                {file: sysfs.read(*place, file) for file in _FILES}, name)
            self.assertEqual(
                {file: file in real['files'] for file in _PRESENT},
                {file: sysfs.exists(*place, file) for file in _PRESENT}, name)

    def test_no_claim_is_refuted(self):
        for name, found, _ in self.recorded():
            self.assertEqual([], [
                row for row in self.check.judged(found)
                if row[0] == 'REFUTED'], name)

    def test_nobody_is_named(self):
        for path in DATA.glob('*.json'):
            found = self.check.loads(path)
            self.assertEqual(found, self.check.anonymise(found), path.name)


def _equal(record, other):
    real, simulated = _answer(record), _answer(other)
    if record['call'] not in _STATES or 'error' in record:
        return real == simulated
    if not isinstance(real, dict):
        return type(real) is type(simulated)
    return real.get('total') == simulated.get('total')


def _host(found):
    """Return a machine with the recorded board, its only GPU."""
    calls = {record['call']: record['result'] for record in found['calls']
             if 'result' in record}
    others = dict(found['facts']['pci'])
    ids_of = others.pop('pci_others')
    ((name, function),) = others.items()
    ids = {file: function['values'][file].removeprefix('0x')
           for file in ('device', 'subsystem_device')}
    (model,) = [model for model in map(files.load_model, files.model_names())
                if {file: getattr(model, file) for file in ids} == ids]
    parameters = found['facts']['driver']['proc/driver/nvidia']['params']
    if 'NvLinkDisable: 1' in parameters:
        model = dataclasses.replace(model, nvlinks=0)
    version = calls['nvmlSystemGetDriverVersion']
    gpu = spec.Gpu(
        address=name.removeprefix('pci/'), model=model, minor=0,
        uuid=calls['nvmlDeviceGetUUID'], serial=calls['nvmlDeviceGetSerial'],
        numa_node=int(function['values']['numa_node']), vfs=0,
        nvlink_peers=())
    return spec.Host(
        name=pathlib.Path(name).stem, digest='', driver_version=version,
        gpus=(gpu,),
        functions=tuple(_function(*item) for item in ids_of.items()),
        virtual=calls['nvmlDeviceGetVirtualizationMode']
        == pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH)


def _function(address, text):
    vendor, device, class_code, _ = text.split()
    return spec.Function(address=address, vendor=vendor.removeprefix('0x'),
                         device=device.removeprefix('0x'),
                         class_code=class_code.removeprefix('0x'))
