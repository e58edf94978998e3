# SPDX-License-Identifier: Apache-2.0

"""The steps that ironic-python-agent offers, and the cleaning steps."""

import pynvml
from ironic_python_agent import errors

from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.tests.ironic import agent_case

_LAYOUT = 'apply_gpu_layout'
_UUID = '6b1f8c2e-0d5a-4c0e-9d1c-3f6a2b7e4d10'
_CLEANING = ['clear_gpu_partitions', 'reset_gpus', 'verify_gpus']


class OfferTest(agent_case.AgentCase):

    def test_mig(self):
        for name in ('hgx-h100', 'a30x4'):
            self.use(name)
            self.assertEqual(_CLEANING, self.names('clean'))
            self.assertEqual([_LAYOUT], self.names('deploy'))
            self.assertEqual([_LAYOUT, *_CLEANING], self.names('service'))
            self.assertEqual('1.0', self.version['nvidia-gpus'])

    def test_priorities(self):
        clean = {step['step']: step['priority']
                 for step in self.steps('clean')}
        generic = {step['step']: step['priority']
                   for step in self.steps('clean', 'GenericHardwareManager')}
        self.assertGreater(clean['reset_gpus'], generic['erase_devices'])
        self.assertGreater(generic['erase_devices'], clean['verify_gpus'])
        self.assertGreater(clean['verify_gpus'], 0)
        for kind in ('deploy', 'service'):
            self.assertEqual({0}, {step['priority']
                                   for step in self.steps(kind)})
        (step,) = self.steps('deploy')
        self.assertTrue(step['argsinfo']['layout']['required'])

    def test_no_mig(self):
        self.use('t4x4')
        self.assertEqual(['reset_gpus', 'verify_gpus'], self.names('clean'))
        self.assertEqual([], self.names('deploy'))
        self.assertIn('none of its GPUs supports MIG', self.log.output)

    def test_no_nvml(self):
        self.machine.unload_library()
        for gpu in self.machine.gpus:
            self.machine.bind_driver(gpu.address, None)
        self.assertEqual(['reset_gpus', 'verify_gpus'], self.names('clean'))
        self.assertEqual([_LAYOUT], self.names('deploy'))

    def test_who_uses_it_is_not_known(self):
        self.machine.unload_library()
        self.assertEqual(['verify_gpus'], self.names('clean'))
        self.assertIn('NVML does not list its users', self.log.output)

    def test_nouveau(self):
        self.machine.bind_driver(self.machine.gpus[0].address, 'nouveau')
        self.assertNotIn('reset_gpus', self.names('clean'))
        self.assertIn('is bound to nouveau', self.log.output)

    def test_ignored(self):
        self.conf.config(group='gpu', ignored_devices=[
            gpu.address for gpu in self.machine.gpus])
        self.restart()
        self.assertEqual([], self.names('clean'))

    def test_wrong_options(self):
        """Each step fails and names the option; the agent keeps running."""
        self.conf.config(group='gpu', ignored_devices=['some'])
        self.restart()
        self.assertEqual(_CLEANING, self.names('clean'))
        self.assertEqual([_LAYOUT], self.names('deploy'))
        for name in _CLEANING:
            self.refused('clean', name, errors.CleaningError,
                         '[gpu] ignored_devices = some')
        self.refused('deploy', _LAYOUT, errors.DeploymentError,
                     '[gpu] ignored_devices = some', layout='all-disabled')


class SysfsTest(agent_case.AgentCase):
    """A ramdisk without NVIDIA's driver and without a simulation."""

    MACHINE = None

    def add(self, vendor='0x10de', **files):
        """Add a PCI function to the node's sysfs."""
        devices = self.sysfs / 'bus/pci/devices'
        place = devices / f'0000:{len(list(devices.iterdir())):02x}:00.0'
        place.mkdir()
        for name, text in {'vendor': vendor, 'device': '0x2330',
                           'class': '0x030200', **files}.items():
            (place / name).write_text(f'{text}\n', encoding='ascii')
        return place

    def test_no_gpu(self):
        self.add(vendor='0x8086', **{'class': '0x030000'})
        for kind in ('clean', 'deploy', 'service'):
            self.assertEqual([], self.names(kind))
        self.refused('clean', 'verify_gpus', errors.CleaningError,
                     'there is no NVIDIA GPU, and no inspection of the node')

    def test_all_are_missing(self):
        properties = {'nvidia_gpus': {'boards': [
            {'device_id': '2330', 'model': 'NVIDIA H100', 'count': 8}]}}
        self.assertEqual(['verify_gpus'], self.names('clean', properties))
        self.refused('clean', 'verify_gpus', errors.CleaningError,
                     'no GPU where the last inspection found 8 x NVIDIA H100',
                     properties=properties)

    def test_wrong_options_without_a_gpu(self):
        self.conf.config(group='gpu', ignored_devices=['some'])
        self.restart()
        self.assertEqual([], self.names('clean'))
        self.assertIn('[gpu] ignored_devices = some', self.log.output)

    def test_reset(self):
        places = [self.add(reset='', reset_method='flr') for _ in range(2)]
        self.assertEqual(['reset_gpus', 'verify_gpus'], self.names('clean'))
        done = self.execute('clean', 'reset_gpus')['gpus']
        self.assertEqual(['flr'] * 2, [item['method'] for item in done])
        for place in places:
            self.assertEqual('1', agent_case.read(place / 'reset'))

    def test_no_reset(self):
        self.add(reset='')
        self.add()
        self.assertEqual(['verify_gpus'], self.names('clean'))
        self.assertIn('the kernel cannot reset GPU 0000:01:00.0',
                      self.log.output)
        self.refused('clean', 'reset_gpus', errors.CleaningError,
                     'GPU 0000:01:00.0: the kernel has no way to reset it')


class CleanTest(agent_case.AgentCase):

    def setUp(self):
        super().setUp()
        self.gpu = self.machine.gpus[0].address
        self.clear()

    def verify(self, **properties):
        return self.execute('clean', 'verify_gpus', properties)

    def fails(self, *words, **properties):
        return self.refused('clean', 'verify_gpus', errors.CleaningError,
                            *words, properties=properties)

    def test_a_clean_node(self):
        found = self.verify()['gpus']
        self.assertEqual([gpu.address for gpu in self.machine.gpus],
                         [item['gpu'] for item in found])
        self.assertEqual(0, found[0]['health']['ecc_uncorrected'])
        self.assertEqual(0, found[0]['traces']['processes'])
        self.assertIn(f'GPU {self.gpu}: ', self.log.output)

    def test_unhealthy(self):
        other = self.machine.gpus[3].address
        self.machine.set_remapped_rows(self.gpu, failed=True)
        self.machine.set_health(other, uncorrected=2)
        self.fails(f'GPU {self.gpu}: a row of its memory could not be',
                   f'GPU {other}: uncorrected ECC errors')

    def test_a_reset_cures(self):
        self.machine.set_health(self.gpu, uncorrected=2)
        done = self.execute('clean', 'reset_gpus')['gpus']
        self.assertEqual(2, done[0]['before']['ecc_uncorrected'])
        self.assertEqual(0, done[0]['after']['ecc_uncorrected'])
        self.verify()

    def test_lost(self):
        self.machine.lose_gpu(self.gpu)
        self.fails(f'GPU {self.gpu}', 'GPU_IS_LOST', 'NVML does not list it')

    def test_in_use(self):
        self.machine.add_process(self.gpu, 4711)
        self.fails(f'GPU {self.gpu}: 1 process(es) use it')
        self.refused('clean', 'reset_gpus', errors.CleaningError,
                     f'GPU {self.gpu} is in use')
        self.machine.remove_process(4711)
        self.verify()

    def test_nvml_that_does_not_work(self):
        self.machine.unload_library(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.fails('the ramdisk has NVML, but it does not work')

    def test_without_nvml(self):
        self.machine.unload_library()
        found = self.verify()['gpus']
        self.assertEqual(4, len(found))
        self.assertIsNone(found[0]['health'])

    def test_other_boards_than_at_the_inspection(self):
        boards = [{'device_id': '20b7', 'model': None, 'count': 4}]
        self.verify(nvidia_gpus={'count': 4, 'boards': boards})
        boards[0]['count'] = 5
        self.fails('4 x NVIDIA A30', 'where the last inspection found 5 x',
                   nvidia_gpus={'boards': boards})
        boards.append({'device_id': '2330', 'count': 1,
                       'model': 'NVIDIA H100'})
        self.fails('NVIDIA H100', nvidia_gpus={'boards': boards})
        self.fails('inspect the node again', nvidia_gpus={'boards': 4})

    def test_a_tenant_s_partitions(self):
        self.cut()
        self.fails(f'GPU {self.gpu}: GPU instance 1g.6gb is left at 0:1',
                   'its MIG mode is on instead of off')
        done = self.clear()
        self.assertEqual(
            {'vgpus': 0, 'virtual_functions': 0, 'gpu_instances': 1,
             'mig_mode': True}, done[0]['before'])
        self.assertEqual(
            {'vgpus': 0, 'virtual_functions': 0, 'gpu_instances': 0,
             'mig_mode': False}, done[0]['after'])
        self.assertEqual(['changed', *['unchanged'] * 3],
                         [item['status'] for item in done])
        self.verify()

    def cut(self):
        with self.machine.operation(write=True):
            state = self.machine.gpu(self.gpu).state
            state.mig = state.pending = True
        privileged.create_gpu_instance(self.gpu, 14, 0, 1)


class ModesTest(agent_case.AgentCase):
    """Steps compare GPU modes with those that the inspection recorded."""

    def setUp(self):
        super().setUp()
        self.gpu = self.machine.gpus[0].address

    def properties(self, mode=None, **gpu):
        return {'nvidia_gpus': {
            'boards': [{'device_id': self.machine.gpus[0].model.device,
                        'model': None, 'count': len(self.machine.gpus)}],
            'modes': {'confidential_computing': mode,
                      'gpus': {self.gpu: gpu}}}}

    def fails(self, properties, *words):
        return self.refused('clean', 'verify_gpus', errors.CleaningError,
                            *words, properties=properties)

    def test_ecc(self):
        wanted = self.properties(ecc=True)
        self.clear()
        self.machine.change_gpu(self.gpu, ecc_modes=[False] * 2)
        self.execute('clean', 'verify_gpus')
        self.fails(wanted, f'GPU {self.gpu}: its ECC mode is off instead '
                   'of on: clear_gpu_partitions sets it, or inspect')
        done = self.clear(wanted)
        self.assertEqual([True, None, None, None],
                         [item.get('ecc_mode') for item in done])
        # The mode is pending until the reboot that ends the cleaning.
        found = self.execute('clean', 'verify_gpus', wanted)['gpus'][0]
        self.assertEqual({'enabled': False, 'pending': True},
                         found['ecc_mode'])
        self.reboot()
        found = self.execute('clean', 'verify_gpus', wanted)['gpus'][0]
        self.assertTrue(found['ecc_mode']['enabled'])

    def test_ecc_without_mig(self):
        self.use('t4x4')
        self.gpu = self.machine.gpus[0].address
        wanted = self.properties(ecc=False)
        self.assertIn('clear_gpu_partitions', self.names('clean', wanted))
        self.assertFalse(self.clear(wanted)[0]['ecc_mode'])

    def test_a_tenant_has_its_own(self):
        self.execute('service', 'verify_gpus', self.properties(
            ecc=False, mig=False))

    def test_mig(self):
        wanted = self.properties(mig=True)
        self.clear(wanted)
        with self.machine.operation():
            self.assertEqual([True, False, False, False], [
                gpu.state.pending for gpu in self.machine.gpus])
        self.execute('clean', 'verify_gpus', wanted)
        self.clear()
        self.fails(wanted, f'GPU {self.gpu}: its MIG mode is off instead '
                   'of on')

    def test_confidential_computing(self):
        self.use('hgx-h100')
        self.gpu = self.machine.gpus[0].address
        self.clear()
        off = self.properties('off')
        self.execute('clean', 'verify_gpus', off)
        self.machine.set_confidential_computing('on')
        self.fails(off, 'confidential computing is on, but was off at '
                   'the last inspection', '--set-cc-mode=off')
        self.execute('clean', 'verify_gpus', self.properties('on'))
        self.execute('clean', 'verify_gpus', self.properties())

    def test_what_is_missing_is_named(self):
        wanted = self.properties(ecc=True)
        wanted['nvidia_gpus']['modes']['gpus']['0000:99:00.0'] = {
            'ecc': True, 'mig': False}
        wanted['nvidia_gpus']['boards'][0]['count'] = 5
        self.fails(wanted, 'missing: 0000:99:00.0')

    def test_a_record_that_is_malformed(self):
        self.clear()
        for modes in (7, {'gpus': []}, {'gpus': {'x': {}, self.gpu: 7}},
                      {'gpus': {self.gpu: {'ecc': 'no', 'mig': 1}},
                       'confidential_computing': 7}):
            properties = self.properties()
            properties['nvidia_gpus']['modes'] = modes
            self.execute('clean', 'verify_gpus', properties)


class VgpuTest(agent_case.AgentCase):
    """A ramdisk with NVIDIA's vGPU host driver."""

    MACHINE = 'dgx-a100-40'
    GPUS = 2

    def test_they_go_unless_a_guest_has_one(self):
        gpu = self.machine.gpus[0].address
        # As a side effect, privileged changes now run in this process.
        self.names('clean')
        privileged_gpu.set_virtual_functions(gpu, True)
        privileged.create_gpu_instance(gpu, 19, 6, 1)
        function = privileged.machine().sysfs.link_name(
            'bus', 'pci', 'devices', gpu, 'virtfn0')
        privileged_vgpu.create_mdev(function, 'nvidia-463', _UUID)
        self.machine.start_guest(_UUID)
        self.refused('clean', 'clear_gpu_partitions', errors.CleaningError,
                     f'GPU {gpu}: vGPU {_UUID} was not removed: a virtual '
                     'machine')
        self.refused('clean', 'verify_gpus', errors.CleaningError,
                     f'vGPU {_UUID} is left on {function}',
                     '16 virtual functions are left')
        self.machine.stop_guest(_UUID)
        self.assertEqual(
            {'vgpus': 1, 'virtual_functions': 16, 'gpu_instances': 1,
             'mig_mode': True}, self.clear()[0]['before'])
        self.execute('clean', 'verify_gpus')
