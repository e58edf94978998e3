# SPDX-License-Identifier: Apache-2.0


"""A change from Cyborg's own driver while servers keep their GPUs."""

import fixtures
from cyborg import context
from cyborg.accelerator.drivers.gpu.nvidia import sysinfo

from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import gpu_cloud

_FIRST, _SECOND = '0000:07:00.0', '0000:0f:00.0'
_SLICE = 'CUSTOM_NVIDIA_3G_40GB'


class MigrationCase(gpu_cloud.GpuTestCase):
    """Two GPUs that Cyborg's own driver has reported as whole GPUs."""

    addresses = _FIRST, _SECOND

    overrides = {
        'gpu': {'policies': 'both'},
        'gpu_policy:both': {'mode': 'mig', 'profiles': '3g.40gb',
                            'match_address': f'{_FIRST}, {_SECOND}'}}

    def start(self, **overrides):
        self.reporting = self.report_in_tree
        super().start(**overrides)
        self.reporting = super().report
        self.useFixture(fixtures.FakeLogger(level='INFO'))

    def report(self):
        self.reporting()

    def report_in_tree(self):
        """Report what cyborg-agent reports with ``nvidia_gpu_driver``."""
        self.cloud.conductor.report_data(
            context.get_admin_context(), gpu_cloud.HOST,
            [sysinfo._generate_driver_device({
                'hostname': gpu_cloud.HOST, 'address': address,
                'vendor_id': '10de', 'device_id': '20b2',
                'class_name': '3D controller', 'rc': 'PGPU',
                **sysinfo._get_traits('10de', '20b2')})
             for address in self.addresses])

    def boot(self):
        """Boot with a whole GPU of that driver; return server and address."""
        server = self.cloud.bind(self.profile('PGPU'))
        (arq,) = server.arqs
        return server, '{domain}:{bus}:{device}.{function}'.format(
            **arq['attach_handle_info'])

    def withdrawn(self):
        """Return the GPUs of Cyborg's own driver that are withdrawn."""
        return {address for address in self.addresses
                if names.WITHDRAWN in self.cloud.placement.traits(
                    self.cloud.provider(f'{gpu_cloud.HOST}_{address}')[
                        'uuid'])}

    def left(self, address):
        """Return what Placement has left of a GPU of Cyborg's own driver."""
        (item,) = self.cloud.placement.inventories(self.cloud.provider(
            f'{gpu_cloud.HOST}_{address}')['uuid']).values()
        return item['total'] - item['reserved']


class WholeGpuTest(MigrationCase):

    def test_what_is_in_use_stays_and_the_rest_is_reported(self):
        server, used = self.boot()
        (idle,) = {_FIRST, _SECOND} - {used}
        for _ in range(2):
            self.report()
            self.assertEqual({idle}, self.withdrawn())
            self.assertEqual({}, self.reserved(used))
            self.assertEqual({'3g.40gb': (2, 0)}, self.reserved(idle))
            self.assertEqual(1, self.handles_in_use())
            self.assertEqual([0, 0], [self.left(used), self.left(idle)])
        (arq,) = self.cloud.cyborg.arqs()
        self.assertEqual('Bound', arq['state'])
        self.cloud.bind(self.profile(_SLICE))
        self.cloud.unbind(server)
        for _ in range(2):
            self.report()
            self.assertEqual({used, idle}, self.withdrawn())
            self.assertEqual(0, self.left(used))
            self.assertEqual({'3g.40gb': (2, 0)}, self.reserved(used))
        # An operator deletes one; the other stays.
        provider = self.cloud.provider(f'{gpu_cloud.HOST}_{used}')['uuid']
        self.cloud.placement.delete(f'/resource_providers/{provider}')
        self.report()
        self.assertEqual(
            {f'{gpu_cloud.HOST}_{idle}'},
            {name for name in self.cloud.placement.providers()
             if name.startswith(f'{gpu_cloud.HOST}_0000')})


@scope.only_in_all
class FunctionTest(MigrationCase):
    """Cyborg's own driver has reported a virtual function as a GPU."""

    addresses = ('0000:07:00.4',)

    def test_its_gpu_waits_for_the_server(self):
        server, used = self.boot()
        self.report()
        self.assertEqual({}, self.reserved(_FIRST))
        self.assertEqual({'3g.40gb': (2, 0)}, self.reserved(_SECOND))
        self.cloud.unbind(server)
        for _ in range(2):
            self.report()
            self.assertEqual({used}, self.withdrawn())
            self.assertEqual(0, self.left(used))
            self.assertEqual({'3g.40gb': (2, 0)}, self.reserved(_FIRST))


class ReadyTest(MigrationCase):
    """The policy needs another MIG mode than the GPUs have."""

    overrides = {
        'gpu': {'policies': 'both'},
        'gpu_policy:both': {'mode': 'passthrough',
                            'match_address': f'{_FIRST}, {_SECOND}'}}

    def test_a_gpu_is_not_changed_while_a_server_has_it(self):
        server, used = self.boot()
        (idle,) = {_FIRST, _SECOND} - {used}
        self.report()
        self.assertEqual((True, 20), self.modes(used))
        self.assertEqual((False, 0), self.modes(idle))
        self.assertEqual({'passthrough': (1, 0)}, self.reserved(idle))
        self.cloud.unbind(server)
        self.report()
        self.assertEqual((False, 0), self.modes(used))

    def modes(self, address):
        state = self.hardware(address)
        return state.mig, state.vfs
