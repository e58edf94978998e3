# SPDX-License-Identifier: Apache-2.0


"""Nova's own libvirt driver on a simulated GPU host."""

from __future__ import annotations

import collections
import itertools
import json
import types
import uuid

import fixtures
from lxml import etree
from nova import context
from nova import exception as nova_exception
from nova import objects
from nova import test
from nova.network import model as network_model
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.unit import fake_instance
from nova.virt import fake
from nova.virt.libvirt import driver as libvirt_driver
from oslo_config import cfg

from cyborg_gpu_driver import agent
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import capability
from cyborg_gpu_driver.nova import handles
from cyborg_gpu_driver.nova import patches
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import empty_placement
from cyborg_gpu_driver.tests.nova import libvirt_compute
from cyborg_gpu_driver.tests.unit.program import machines

HOST = 'compute1'


class GpuHost(fixtures.Fixture):
    """A simulated host with its agent and the attach handles it reports.

    :param name: name or file of the simulated machine.
    :param governing: policies of its GPUs.
    :param gpus: how many GPUs it has if it is known by its name, or which.
    :param hostname: how Placement names it.
    :param placement: returns the agent's client of Placement.
    """

    def __init__(self, name, *governing, gpus=2, hostname=HOST,
                 placement=empty_placement.EmptyPlacement):
        super().__init__()
        self._name = name
        self._gpus = gpus
        self._hostname = hostname
        self._placement = placement
        self._settings = policies.Settings(policies=governing,
                                           health_events=False)

    def _setUp(self):
        directory = self.useFixture(fixtures.TempDir()).path
        state = f'{directory}/machine'
        host = self._name
        if host in files.names():
            host = machines.write(directory, host, self._gpus)
        # The agent leaves its own machine under pynvml. Uninstalling this
        # machine removes the agent's as well.
        self.machine = simulator.Machine.load(host, state).install()
        self.addCleanup(self.machine.uninstall)
        self.addCleanup(setattr, privileged, '_platform', None)
        conf = cfg.ConfigOpts()
        gpu_conf.register_opts(conf)
        conf([], default_config_files=[])
        for name, value in (('state_path', directory),
                            ('simulate', host),
                            ('simulate_state', state)):
            conf.set_override(name, value, group='gpu')
        self.sysfs = platform.from_conf(conf).sysfs
        self._agent = agent.Agent(conf, self._settings, self._hostname,
                                  self._placement)
        self.addCleanup(self._agent.stop)

    def handles(self, profile=None):
        """The handles that the agent reports, in the order of the report.

        :param profile: only handles of this profile; None for all.
        """
        return [handle for device in self._agent.report()
                for deployable in device.deployables
                if profile in (None, deployable.offer.profile)
                for handle in deployable.handles]

    def bind(self, request):
        """Bind on the agent, as Cyborg does for an accelerator request."""
        if request['attach_handle_type'] == names.MDEV:
            self._agent.bind(*_rpc(request))

    def unbind(self, request):
        """Unbind on the agent, as Cyborg does for a deleted request."""
        if request['attach_handle_type'] == names.MDEV:
            self._agent.unbind(*_rpc(request))


def _rpc(request):
    """The arguments that Cyborg's agent receives: function, type, handle."""
    return (function_of(request),
            request['attach_handle_info']['asked_type'],
            request['attach_handle_uuid'])


def function_of(request):
    """The address of the PCI function that a request names."""
    info = request['attach_handle_info']
    return (f'{info["domain"]}:{info["bus"]}:{info["device"]}.'
            f'{info["function"]}')


def arq(handle, server):
    """A bound accelerator request as Cyborg's API returns it to Nova."""
    return {
        'uuid': str(uuid.uuid4()), 'state': 'Bound',
        'device_profile_name': 'gpu', 'hostname': HOST,
        'device_profile_group_id': 0,
        'device_rp_uuid': str(uuid.uuid4()), 'instance_uuid': server,
        'attach_handle_type': handle.attach_type,
        'attach_handle_uuid': str(uuid.uuid4()),
        'attach_handle_info': json.loads(handle.attach_info),
    }


class DriverCase(test.TestCase):
    """Servers that the released LibvirtDriver creates on a fake libvirt."""

    def setUp(self):
        super().setUp()
        self.flags(instances_path=self.useFixture(fixtures.TempDir()).path)
        self.connection = fakelibvirt.Connection(
            'qemu:///system', host_info=fakelibvirt.HostInfo(),
            pci_info=fakelibvirt.HostPCIDevicesInfo(num_pfs=0, num_vfs=0),
            mdev_info=Mdevs(), hostname=HOST)
        for fake_ in libvirt_compute.fakes(self.connection):
            self.useFixture(fake_)
        self.useFixture(fixtures.MockPatch(
            'nova.objects.instance.Instance.save'))
        self.created = self._record_mdevs()
        self.requests = collections.defaultdict(list)
        self.numbers = itertools.count(1)
        self.context = context.get_admin_context()
        self.context.auth_token = None
        self.driver = libvirt_driver.LibvirtDriver(fake.FakeVirtAPI(), False)

    def _record_mdevs(self):
        """Record (parent, type, UUID) of each mdev that Nova creates.

        The fake libvirt accepts new node devices but does not keep them.
        """
        created = []

        def create(_connection, xml, flags=0):
            device = etree.fromstring(xml)
            created.append((device.findtext('parent'),
                            device.find('capability/type').get('id'),
                            device.findtext('capability/uuid')))
            return types.SimpleNamespace(
                name=lambda: 'mdev', setAutostart=lambda value: None,
                XMLDesc=lambda flags: xml, create=lambda flags=0: None)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Connection.nodeDeviceCreateXML',
            create))
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Connection.nodeDeviceDefineXML',
            lambda connection, xml, flags=0: types.SimpleNamespace(
                name=lambda: 'mdev', setAutostart=lambda value: None)))
        return created

    def bound(self, host, handle, server):
        """Return a request for a handle that the host's agent has bound.

        As on a real host, libvirt lists an mdev that the agent created by
        its UUID and the function on which it really is.
        """
        request = arq(handle, server.uuid)
        host.bind(request)
        self.requests[server.uuid].append(request)
        made = ('bus', 'mdev', 'devices', request['attach_handle_uuid'])
        place = host.sysfs.link_parts(*made)
        if place:
            self.connection.mdev_info.add(
                made[-1], place[-2],
                host.sysfs.link_name(*made, 'mdev_type'))
        return request

    def domains(self):
        """The UUIDs of the servers that libvirt knows, running or not.

        Without flags, libvirt lists all domains, but the fake lists none.
        """
        return {domain.UUIDString() for domain
                in self.connection.listAllDomains(
                    fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
                    | fakelibvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE)}

    def extend(self, host):
        """Extend Nova's driver, as cyborg-gpu-nova-compute does at start."""
        for name in capability.METHODS:
            self.useFixture(fixtures.MonkeyPatch(
                f'nova.virt.libvirt.driver.LibvirtDriver.{name}',
                getattr(libvirt_driver.LibvirtDriver, name)))
        patches.Patches(
            handles.HandleReader(host.sysfs),
            handles.Requests(lambda context, server: self.requests[server]),
            lambda reason: nova_exception.AcceleratorRequestOpFailed(
                op='attach', msg=reason)).install(
                    libvirt_driver.LibvirtDriver)

    def instance(self):
        """A server that does not exist yet."""
        # The fake libvirt finds domains by name, which Nova makes from the id.
        instance = fake_instance.fake_instance_obj(
            self.context, id=next(self.numbers),
            uuid=str(uuid.uuid4()), expected_attrs=[
                'system_metadata', 'pci_devices', 'pci_requests',
                'numa_topology'])
        instance.node = HOST
        instance.vcpu_model = None
        instance.info_cache = objects.InstanceInfoCache(
            network_info=network_model.NetworkInfo())
        instance.image_ref = ''
        instance.config_drive = ''
        instance.flavor = objects.Flavor(
            id=1, flavorid='1', name='gpu', memory_mb=512, vcpus=1,
            root_gb=0, ephemeral_gb=0, swap=0,
            extra_specs={'accel:device_profile': 'gpu'})
        return instance

    def spawn(self, instance, requests):
        self.driver.spawn(
            self.context, instance, objects.ImageMeta.from_dict({}), [],
            None, {}, network_info=[], accel_info=requests)

    def hard_reboot(self, instance, requests):
        self.driver.reboot(self.context, instance, [], 'HARD',
                           accel_info=requests)

    def hostdevs(self, instance):
        """The host devices of the server's domain, in the order of its XML."""
        xml = self.connection.lookupByUUIDString(instance.uuid).XMLDesc(0)
        return [_hostdev(device) for device
                in etree.fromstring(xml).iterfind('devices/hostdev')]


Hostdev = collections.namedtuple('Hostdev', 'type managed source')


def _hostdev(device):
    address = device.find('source/address')
    if device.get('type') == 'mdev':
        return Hostdev('mdev', device.get('managed'), address.get('uuid'))
    domain, bus, slot, function = (
        int(address.get(name), 16)
        for name in ('domain', 'bus', 'slot', 'function'))
    return Hostdev(device.get('type'), device.get('managed'), str(
        model.PciAddress(domain, bus, slot, function)))


class Mdevs(libvirt_compute.Mdevs):
    """The mdevs that a test adds to those that libvirt knows."""

    def __init__(self):
        self._known = {}

    def add(self, mdev, parent, type_id):
        self._known.update([
            libvirt_compute.listed(mdev, str(parent), type_id)])

    def _devices(self):
        return self._known
