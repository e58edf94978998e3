# SPDX-License-Identifier: Apache-2.0

"""The owner of a GPU, found without asking the cloud."""

import math
import os
import time
import uuid

import fixtures

from cyborg_gpu_driver.host import domains
from cyborg_gpu_driver.metrics import collect
from cyborg_gpu_driver.metrics import owners
from cyborg_gpu_driver.metrics import sampler
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import empty_placement
from cyborg_gpu_driver.tests.unit.host import base
from cyborg_gpu_driver.tests.unit.host import test_domains
from cyborg_gpu_driver.tests.unit.metrics import monitored

_ONE, _TWO = (str(uuid.UUID(int=number, version=4)) for number in (1, 2))


class _Case(base.SimulatedTestCase):
    """An agent's host; the exporter has its records, NVML and libvirt."""

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.agent = monitored.start_agent(
            self.state_path, empty_placement.EmptyPlacement,
            simulate=self.MACHINE,
            simulate_state=os.path.join(self.state_path, 'machine'))
        self.platform = self.agent.platform
        self.machine = self.platform.sysfs._os._machine
        self.addCleanup(self.machine.uninstall)
        self.addCleanup(self.platform.nvml.reset)
        self.handles = [handle for device in self.agent.report()
                        for deployable in device.deployables
                        for handle in deployable.handles]
        self.watch = owners.Watch(domains.DomainReader(
            self.platform.libvirt))

    def bind(self, handle):
        """Bind a handle and return the claim."""
        name = str(uuid.uuid4())
        self.agent.bind(str(handle.address), handle.asked_type, name)
        (claim,) = [claim for claim in self.agent.records.claims()
                    if claim.handle == name]
        return claim

    def define(self, server, device, project='', flavor='small'):
        self.machine.define_domain(server, test_domains.xml(
            server, project or f'project-of-{server}', flavor, (device,)))

    def assignments(self):
        """Return the labels of each assignment."""
        return [labels for labels, _ in monitored.samples(collect.Collector(
            self.state_path, 'host1', '1', domains=self.watch))[
                'cyborg_gpu_assignment_info']]

    def scrape(self):
        """Return server, project and flavor by handle; '' for a whole GPU."""
        return {labels['handle']: tuple(
            labels[name] for name in ('server', 'project', 'flavor'))
            for labels in self.assignments()}


class LibvirtTest(_Case):
    """MIG-backed vGPUs that are mdevs."""

    MACHINE = 'dgx-a100-80'

    def test_two_projects_on_one_gpu(self):
        first, second = (self.bind(handle) for handle in self.handles[:2])
        self.assertEqual(first.gpu, second.gpu)
        self.define(_ONE, first.handle, 'project1', 'large')
        self.define(_TWO, second.handle, 'project2')
        self.watch.round()
        self.assertEqual({first.handle: (_ONE, 'project1', 'large'),
                          second.handle: (_TWO, 'project2', 'small')},
                         self.scrape())

    def test_cyborg_says_it_and_libvirt_knows_the_rest(self):
        claim = self.bind(self.handles[0])
        writer = state.StateWriter(self.state_path, 'host1')
        writer.set(owners={claim.handle: state.Owner(
            'arq', _ONE, claim.since)})
        writer.write()
        self.define(_ONE, '0000:99:00.0', 'project1')
        # Cyborg's answer counts, not libvirt's for the same device.
        self.define(_TWO, claim.handle, 'project2')
        self.watch.round()
        self.assertEqual({claim.handle: (_ONE, 'project1', 'small')},
                         self.scrape())

    def test_what_cyborg_said_of_an_earlier_bind(self):
        handle = self.handles[0]
        name = str(uuid.uuid4())
        arguments = str(handle.address), handle.asked_type, name
        self.agent.bind(*arguments)
        observer = self.agent._observer

        def of(server):
            return reconcile.Requests((reconcile.Request(
                name, 'arq', server, handle.address, handle.asked_type),))

        def say(server, asked=math.inf):
            observer.claims(of(server), asked)
            observer._write()
        say(_ONE)
        asked = time.time()
        self.assertEqual(_ONE, self.scrape()[name][0])
        self.agent.unbind(*arguments)
        self.agent.bind(*arguments)
        self.assertEqual('', self.scrape()[name][0])
        # Cyborg was asked before that bind, or does not know the request.
        say(_ONE, asked)
        observer.claims(reconcile.Requests())
        observer._write()
        self.assertEqual('', self.scrape()[name][0])
        say(_TWO)
        self.assertEqual(_TWO, self.scrape()[name][0])

    def test_two_virtual_machines_with_one_device(self):
        claim = self.bind(self.handles[0])
        for server in (_ONE, _TWO):
            self.define(server, claim.handle)
        self.watch.round()
        self.assertEqual({claim.handle: ('', '', '')}, self.scrape())

    def test_what_libvirt_said_long_ago_is_forgotten(self):
        claim = self.bind(self.handles[0])
        self.define(_ONE, claim.handle)
        now = [claim.since + 1.0]
        self.watch = owners.Watch(
            domains.DomainReader(self.platform.libvirt), lambda: now[0])
        self.watch.round()
        self.machine.faults.fail('libvirt', 111, times=None)
        now[0] += sampler.STALE - 1.0
        for _ in range(2):
            self.watch.round()
        self.assertEqual(_ONE, self.scrape()[claim.handle][0])
        self.assertEqual(1, len(self.log.about('not known from libvirt')))
        now[0] += 1.0
        self.assertEqual({claim.handle: ('', '', '')}, self.scrape())

    def test_a_group_of_gpus(self):
        members = self.addresses[:2]
        claim = gpu_record.Claim(
            str(uuid.uuid4()), members[0], members[0], 'nvlink-2', 'nvlink-2',
            gpu_record.Phase.BOUND, members=members, since=1.0)
        for item in claim.on_each():
            store.of(self.state_path).put(item.gpu, claims=(item,))
        self.machine.define_domain(_ONE, test_domains.xml(
            _ONE, 'project1', 'group', tuple(map(str, members))))
        self.watch.round()
        self.assertEqual(
            [(str(address), '', _ONE, 'project1') for address in members],
            [tuple(labels[name] for name in (
                'address', 'vf', 'server', 'project'))
             for labels in self.assignments()])


class VfioTest(_Case):
    """vGPUs by virtual function, which one server has after another."""

    MACHINE = 'a100x4-vfio'

    def test_the_function_of_an_earlier_server(self):
        handle = self.handles[0]
        first = self.bind(handle)
        self.define(_ONE, str(first.function), 'project1')
        self.watch.round()
        self.assertEqual({first.handle: (_ONE, 'project1', 'small')},
                         self.scrape())
        self.machine.undefine_domain(_ONE)
        self.agent.unbind(str(handle.address), handle.asked_type,
                          first.handle)
        second = self.bind(handle)
        self.assertEqual(first.function, second.function)
        # libvirt was asked before that bind, and named the first server.
        self.assertEqual({second.handle: ('', '', '')}, self.scrape())
        self.define(_TWO, str(second.function), 'project2')
        self.watch.round()
        self.assertEqual({second.handle: (_TWO, 'project2', 'small')},
                         self.scrape())
