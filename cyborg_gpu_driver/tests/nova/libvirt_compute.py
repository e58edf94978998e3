# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu-nova-compute`` with the libvirt driver, as a process.

    python -m cyborg_gpu_driver.tests.nova.libvirt_compute \
        DIRECTORY STATE HOST --config-file FILE...

Nova's own fake of libvirt replaces libvirt. Its definitions remain in
DIRECTORY when the process ends, as in /etc/libvirt/qemu. ``defined`` has the
XML of each domain as Nova wrote it, by the UUID of the server. ``running`` has
the XML of each domain that was started. A domain that exists at the start of
the process is shut off, as after a boot of the host.

STATE is the file of the simulated host HOST, whose mediated devices libvirt
knows.
"""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import sys

import fixtures
from lxml import etree
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from cyborg_gpu_driver.nova import compute
from cyborg_gpu_driver.simulator import state


class Mdevs:
    """The mediated devices of a simulated host, as libvirt lists them."""

    def __init__(self, path: pathlib.Path):
        self._path = path

    def get_all_devices(self):
        return self._devices().keys()

    def get_device_by_name(self, device_name):
        try:
            return self._devices()[device_name]
        except KeyError:
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError, f'no node device {device_name}',
                error_code=fakelibvirt.VIR_ERR_NO_NODE_DEVICE) from None

    def _devices(self):
        gpus = state.from_json(json.loads(
            self._path.read_text(encoding='utf-8'))['state']).gpus
        return dict(
            listed(vgpu.uuid, vgpu.function, f'nvidia-{vgpu.type_id}')
            for gpu in gpus.values() for vgpu in gpu.vgpus)


def listed(mdev: str, parent: str, type_id: str
           ) -> tuple[str, fakelibvirt.FakeMdevDevice]:
    """Return the name of an mdev, and the device, as libvirt lists it."""
    place = parent.translate(str.maketrans(':.', '__'))
    name = f'mdev_{mdev.replace("-", "_")}_{place}'
    return name, fakelibvirt.FakeMdevDevice(
        dev_name=name, type_id=type_id, parent=f'pci_{place}')


class Connection(fakelibvirt.Connection):
    """The libvirt of a host, which keeps its domains in files."""

    def __init__(self, directory: pathlib.Path, path: pathlib.Path,
                 hostname: str):
        super().__init__(
            'qemu:///system', hostname=hostname,
            host_info=fakelibvirt.HostInfo(),
            pci_info=fakelibvirt.HostPCIDevicesInfo(num_pfs=0, num_vfs=0),
            mdev_info=Mdevs(path))
        self._defined = directory / 'defined'
        self._running = directory / 'running'
        for place in (self._defined, self._running):
            place.mkdir(parents=True, exist_ok=True)
        for file in self._defined.iterdir():
            super().defineXML(file.read_text(encoding='utf-8'))

    def defineXML(self, xml):
        uuid = etree.fromstring(xml).findtext('uuid')
        (self._defined / uuid).write_text(xml, encoding='utf-8')
        return super().defineXML(xml)

    def _mark_running(self, dom):
        super()._mark_running(dom)
        uuid = dom.UUIDString()
        (self._running / uuid).write_text(
            (self._defined / uuid).read_text(encoding='utf-8'),
            encoding='utf-8')

    def _mark_not_running(self, dom):
        super()._mark_not_running(dom)
        (self._running / dom.UUIDString()).unlink(missing_ok=True)

    def _undefine(self, dom):
        super()._undefine(dom)
        (self._defined / dom.UUIDString()).unlink(missing_ok=True)


def main() -> int:
    directory, path, hostname = sys.argv[1:4]
    del sys.argv[1:4]
    connection = Connection(pathlib.Path(directory), pathlib.Path(path),
                            hostname)
    with contextlib.ExitStack() as stack:
        for fixture in (*fakes(connection), _patched(
                'nova.virt.libvirt.host.Host.get_online_cpus',
                set(range(16)))):
            stack.enter_context(fixture)
        return compute.main()


def fakes(connection: fakelibvirt.Connection) -> tuple[fixtures.Fixture, ...]:
    """Return what replaces libvirt and the disks of servers in Nova."""
    driver = 'nova.virt.libvirt.driver'
    return (
        nova_fixtures.LibvirtImageBackendFixture(),
        nova_fixtures.CGroupsFixture(), fakelibvirt.LibvirtFixture(),
        nova_fixtures.OSBrickFixture(),
        *(_patched(f'{driver}.{name}', value) for name, value in (
            ('LibvirtDriver._create_image', (False, False)),
            ('LibvirtDriver._create_images_and_backing', None),
            ('LibvirtDriver._get_instance_disk_info_from_config', []),
            ('LibvirtDriver._get_local_gb_info',
             {'total': 128, 'used': 44, 'free': 84}),
            ('libvirt_utils.is_valid_hostname', True))),
        fixtures.MockPatch(f'{driver}.libvirt_utils.file_open', side_effect=(
            lambda *args, **kwargs: io.BytesIO(b''))),
        _patched('nova.virt.libvirt.host.Host.get_connection', connection))


def _patched(name, value):
    return fixtures.MockPatch(name, return_value=value)


if __name__ == '__main__':
    sys.exit(main())
