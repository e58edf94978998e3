# SPDX-License-Identifier: Apache-2.0

"""The exporter's metrics of an agent's host, without opening a GPU."""

import dataclasses
import json
import os
import shutil
import subprocess
import threading
import time
import uuid

import fixtures
import prometheus_client
import pynvml
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics import collect
from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.metrics import sampler
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import ledger
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import empty_placement
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.unit.metrics import monitored

_SERVER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a11'
_ARQ = '0d7e5b36-92a4-4c37-8b0f-3b8e7f0a1c55'

_CORDONS = (cordon.Cordon(cordon.Source.CYBORG, 5.0, 'ann', 'a fan'),)


class _Placement(empty_placement.EmptyPlacement):
    """A Placement that may know the project of each server."""

    def __init__(self):
        self.project = None
        self.asked = []

    def get(self, url, version=None):
        response = super().get(url, version)
        if self.project and url.startswith('/allocations/'):
            self.asked.append(url)
            response.status_code = 200
            response._content = json.dumps({
                'allocations': {}, 'project_id': self.project}).encode()
        return response


class _Case(base.BaseTestCase):

    machine = 'a30x4'

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path

    def collector(self, hardware=None):
        return collect.Collector(self.state_path, 'host1', '1.2', hardware)

    def scrape(self):
        return monitored.samples(self.collector())

    def one(self, name, **labels):
        (value,) = [value for found, value
                    in self.scrape()[definitions.PREFIX + name]
                    if labels.items() <= found.items()]
        return value


class AgentTest(_Case):
    """An agent on a simulated host; the exporter reads only its files."""

    def setUp(self):
        super().setUp()
        self.placement = _Placement()
        self.agent = monitored.start_agent(
            self.state_path, lambda: self.placement, simulate=self.machine)
        self.devices = self.agent.report()
        self.addCleanup(pynvml.nvmlLib.machine.uninstall)
        deployable = self.devices[0].deployables[0]
        handle = deployable.handles[0]
        self.asked = (str(handle.address), handle.asked_type,
                      str(uuid.uuid4()))

    def test_a_bind_and_an_unbind(self):
        before = time.time()
        self.agent.bind(*self.asked)
        found = self.scrape()
        ((labels, _),) = found['cyborg_gpu_assignment_info']
        (entry,) = self.agent.records.claims()
        self.assertEqual(
            ('host1', str(entry.gpu), self.asked[2], str(entry.function),
             str(entry.instance_id), entry.profile, ''),
            tuple(labels[name] for name in (
                'Hostname', 'address', 'handle', 'vf', 'GPU_I_ID',
                'GPU_I_PROFILE', 'server')))
        self.assertTrue(labels['UUID'].startswith('GPU-'), labels)
        self.assertLessEqual(before, self.one(
            'assignment_start_timestamp_seconds'))
        # A bind writes only the records.
        self.assertEqual(0.0, self.one(
            'operations_total', operation='bind', result='success'))
        self.agent.report()
        self.assertEqual(1.0, self.one(
            'operations_total', operation='bind', result='success'))
        self.assertEqual(1.0, self.one(
            'operation_duration_seconds_count', operation='bind'))
        self.assertEqual(1.0, self.one(
            'offer_in_use', address=str(entry.gpu), profile=entry.profile))
        self.agent.unbind(*self.asked)
        self.assertNotIn('cyborg_gpu_assignment_info', self.scrape())
        self.agent.report()
        self.assertEqual(0.0, self.one(
            'offer_in_use', address=str(entry.gpu), profile=entry.profile))

    def test_what_is_reserved_is_what_placement_is_told(self):
        self.agent.bind(*self.asked)
        self.agent.report()
        (entry,) = self.agent.records.claims()
        inventories = {
            item.resource_class: item
            for item in self.agent.inventories(entry.gpu)}
        found = [(labels['resource_class'], value) for labels, value
                 in self.scrape()['cyborg_gpu_offer_reserved']
                 if labels['address'] == str(entry.gpu)]
        self.assertEqual(sorted(
            (name, float(item.reserved))
            for name, item in inventories.items()), sorted(found))
        for name, item in inventories.items():
            bound = item.resource_class.endswith(
                entry.profile.upper().replace('.', '_'))
            self.assertEqual(
                item.total - item.reserved - bound,
                self.one('offer_open', address=str(entry.gpu),
                         resource_class=name), name)

    def test_a_refused_bind_and_a_failed_report(self):
        self.assertRaises(exception.BindRefused, self.agent.bind,
                          self.asked[0], 'nvidia-9999', self.asked[2])
        self.agent.report()
        self.assertEqual(1.0, self.one(
            'operations_total', operation='bind', result='refused'))
        succeeded = self.one('last_report_timestamp_seconds')
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.record.store.Store.check', self._broken))
        self.assertRaises(exception.JournalUnreadable, self.agent.report)
        self.assertEqual(1.0, self.one(
            'operations_total', operation='report', result='error'))
        self.assertEqual(succeeded,
                         self.one('last_report_timestamp_seconds'))

    def _broken(self, *_):
        raise exception.JournalUnreadable(path='x', reason='no')

    def test_whose_a_handle_is(self):
        self.agent.bind(*self.asked)
        (entry,) = self.agent.records.claims()
        claims = reconcile.Requests((reconcile.Request(
            entry.handle, _ARQ, _SERVER, entry.function, entry.mdev_type),))
        observer = self.agent._observer
        for _ in range(2):
            observer.claims(claims)
            observer.claims(None)
        observer._write()
        self.assertEqual(1.0, self.one(
            'assignment_info', server=_SERVER, arq=_ARQ))
        self.assertEqual(
            [{'server': _SERVER, 'arq': _ARQ, 'since': entry.since}],
            [line.evidence for line in host_files.audit(self.state_path)
             if line.what == 'assigned'])

    def seconds(self, **labels):
        self.agent.report()
        return self.one('assigned_seconds_total', **labels)

    def be_at(self, milliseconds, boot='one'):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.record.uptime.now',
            lambda: ledger.Moment(boot, milliseconds)))

    def test_an_audit_log_that_cannot_be_written_loses_no_time(self):
        os.mkdir(os.path.join(self.state_path, 'audit.jsonl'))
        self.be_at(1000)
        self.agent.bind(*self.asked)
        (entry,) = self.agent.records.claims()
        self.be_at(61000)
        self.agent.report()
        self.assertEqual(60.0, self.seconds(
            address=str(entry.gpu), profile=entry.profile, project=''))
        self.be_at(3601000)
        self.agent.unbind(*self.asked)
        self.assertEqual(3600.0, self.seconds())
        self.be_at(9999000)
        self.assertEqual(3600.0, self.seconds())

    def test_a_clock_that_is_set_changes_no_time(self):
        for days in (-30, 30):
            self.asked = (*self.asked[:2], str(uuid.uuid4()))
            self.be_at(1000)
            self.agent.records.clock = lambda days=days: (
                time.time() + days * 86400)
            self.agent.bind(*self.asked)
            self.agent.records.clock = time.time
            self.be_at(2000)
            self.agent.report()
            self.seconds()
            self.be_at(3000)
            self.agent.unbind(*self.asked)
        self.assertEqual(4.0, self.seconds())

    def test_time_that_cannot_be_shown_is_left_out(self):
        self.agent.bind(*self.asked)
        self.agent.report()
        self.seconds()
        with open(os.path.join(self.state_path, 'uptime.json'), 'w',
                  encoding='utf-8') as stream:
            stream.write('no time')
        found = self.scrape()
        self.assertNotIn('cyborg_gpu_assigned_seconds_total', found)
        self.assertEqual(1.0, self.one('unreadable_records'))

    def test_the_project_of_a_server(self):
        self.agent.conf.set_override('auth_type', 'password',
                                           'gpu_cloud')
        self.placement.project = 'ours'
        self.be_at(1000)
        self.agent.bind(*self.asked)
        (entry,) = self.agent.records.claims()
        self.be_at(5000)
        self.agent.report()
        self.assertNotIn('cyborg_gpu_assigned_seconds_total', self.scrape())
        observer = self.agent._observer
        observer.claims(reconcile.Requests((reconcile.Request(
            entry.handle, _ARQ, _SERVER, entry.function, entry.mdev_type),)))
        for _ in range(3):
            self.agent.report()
        self.assertEqual(4.0, self.one('assigned_seconds_total',
                                       project='ours'))
        self.assertEqual([f'/allocations/{_SERVER}'], self.placement.asked)

    def test_a_server_that_is_gone_before_the_next_report(self):
        observer = self.agent._observer
        self.agent.conf.set_override('auth_type', 'password', 'gpu_cloud')
        self.placement.project = 'ours'
        # After a while, only a report asks Cyborg.
        for begin, late in ((1000, 500), (100_000, 20_000)):
            self.be_at(begin)
            self.agent.bind(*self.asked)
            (entry,) = self.agent.records.claims()
            known = reconcile.Requests((reconcile.Request(
                entry.handle, _ARQ, _SERVER, entry.function,
                entry.mdev_type),))
            observer._node.requests = lambda known=known: known
            self.be_at(begin + late)
            observer.name_new()
            self.be_at(begin + 30_000)
            self.agent.unbind(*self.asked)
        observer._node.requests = lambda: None
        self.assertEqual(30.0, self.seconds(project='ours'))
        self.assertEqual(30.0, self.seconds(project=''))

    def test_xids_are_counted_from_the_start_of_the_agent(self):
        self.agent.bind(*self.asked)
        (entry,) = self.agent.records.claims()
        for number in (13, 79, 79):
            self.agent._event(condition.Event(entry.gpu, number))
        self.assertNotIn('cyborg_gpu_xid_errors_total', self.scrape())
        self.agent._observer._write()
        # XID 13 is an application's fault and no condition of the GPU.
        self.assertEqual((1.0, 2.0), tuple(
            self.one('xid_errors_total', address=str(entry.gpu), xid=xid)
            for xid in ('13', '79')))

    def test_promtool_has_nothing_to_say(self):
        if shutil.which('promtool') is None:
            self.skipTest('there is no promtool: see bindep.txt, prometheus')
        self.agent.bind(*self.asked)
        platform = self.agent.platform
        hardware = sampler.Sampler(platform, self.state_path)
        hardware.round()
        registry = prometheus_client.CollectorRegistry()
        registry.register(self.collector(hardware))
        done = subprocess.run(
            ['promtool', 'check', 'metrics'],
            input=prometheus_client.generate_latest(registry),
            capture_output=True, check=False, timeout=scope.HANG)
        self.assertEqual((0, b'', b''),
                         (done.returncode, done.stdout, done.stderr))

    def test_no_gpu_is_opened(self):
        expected = self.scrape().keys()
        # Every NVML call and every access to sysfs would fail now.
        self.useFixture(fixtures.MonkeyPatch('pynvml.nvmlLib', None))
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.host.sysfs.pci.Sysfs.__init__', None))
        self.assertEqual(expected, self.scrape().keys())

    def offering(self):
        """Return the addresses of the GPUs that have offers."""
        return {labels['address'] for labels, _ in self.scrape().get(
            'cyborg_gpu_offer_capacity', ())}

    def test_a_gpu_that_is_gone_or_fails(self):
        self.assertEqual(4, len(self.offering()))
        gone, failed, *others = sorted(self.offering())
        inventories = self.agent.inventories

        def broken(address):
            if str(address) == failed:
                raise exception.JournalUnreadable(path='x', reason='no')
            return inventories(address)

        self.agent.inventories = broken
        host = self.agent.live.host()
        left = dataclasses.replace(host, gpus=tuple(
            gpu for gpu in host.gpus if str(gpu.address) != gone))
        self.agent.live.host = lambda: left
        with self.agent._observer.report():
            pass
        self.assertEqual(set(others), self.offering())

    def test_differences_and_repairs(self):
        machine = pynvml.nvmlLib.machine
        self.agent.bind(*self.asked)
        with machine.operation():
            for gpu in machine.state.gpus.values():
                gpu.vgpus.clear()
        self.agent.live.refresh()
        self.agent.report()
        self.assertEqual(1.0, self.one('drift', kind='vgpu-gone'))
        self.assertEqual(0.0, self.one('drift', kind='reserved'))
        self.agent._observer._writer.found((), ('reserved', 'reserved'))
        self.agent._observer._write()
        self.assertEqual(2.0, self.one('drift_repaired_total',
                                       kind='reserved'))
        self.assertEqual(0.0, self.one('drift', kind='vgpu-gone'))


class RecordsTest(_Case):
    """Records without an agent."""

    address = model.PciAddress.parse('0000:3b:00.0')

    def put(self, **parts):
        store.of(self.state_path).put(self.address, **parts)

    def test_what_an_operator_has_disabled_and_what_is_unhealthy(self):
        self.put(cordons=_CORDONS, health=gpu_record.HealthRecord(
            'boot', None, (health.Condition('XID_79', 1.0, 2.0),)))
        self.assertEqual(1.0, self.one('disabled'))
        self.assertEqual(1.0, self.one('cordoned'))
        self.assertEqual(5.0, self.one(
            'cordon_timestamp_seconds', source='cyborg', who='ann',
            reason='a fan'))
        self.assertEqual(0.0, self.one('healthy'))
        self.assertEqual(1.0, self.one('condition_info', code='XID_79'))

    def test_a_whole_gpu(self):
        self.put(tenancy=cleaning.Known(cleaning.State.USED, (_SERVER,)))
        self.assertEqual(1.0, self.one(
            'assignment_info', server=_SERVER, profile='passthrough',
            handle=''))
        self.assertEqual(0.0, self.one('unclean'))
        self.put(tenancy=cleaning.Known(cleaning.State.STUCK, (_SERVER,)))
        # It is reset before it is offered as a whole again.
        self.assertEqual(0.0, self.one('unclean'))
        for mode in policy.Mode:
            self.put(reported=gpu_record.Reported(
                '20b7', mode.value, gpu_record.ReportedFacts(), {}))
            self.assertEqual(
                float(mode in (policy.Mode.PASSTHROUGH, policy.Mode.AUTO)),
                self.one('unclean'), mode)
        self.assertEqual(0.0, self.one('cordoned'))
        self.assertNotIn('cyborg_gpu_assignment_info', self.scrape())

    def test_records_that_cannot_be_used_hide_no_other(self):
        self.put(cordons=_CORDONS)
        other = os.path.join(self.state_path, 'gpus', '0000:5e:00.0.json')
        for path in (other, state.path(self.state_path)):
            with open(path, 'w', encoding='utf-8') as stream:
                stream.write('{"kind": ')
        self.assertEqual(2.0, self.one('unreadable_records'))
        self.assertEqual(1.0, self.one('disabled'))


class StateTest(_Case):

    def test_latencies(self):
        now = [0.0]
        writer = state.StateWriter(self.state_path, 'host1', lambda: 5.0,
                                   lambda: now[0])
        for seconds in (0.0625, 0.125, 3.0, 600.0):
            with writer.timed('bind'):
                now[0] += seconds
        writer.write()
        found = {labels['le']: value for labels, value in self.scrape()[
            'cyborg_gpu_operation_duration_seconds_bucket']
            if labels['operation'] == 'bind'}
        self.assertEqual(
            [('0.1', 1.0), ('2.5', 2.0), ('5.0', 3.0), ('60.0', 3.0),
             ('+Inf', 4.0)],
            [(name, found[name]) for name in ('0.1', '2.5', '5.0', '60.0',
                                              '+Inf')])
        self.assertAlmostEqual(603.1875, self.one(
            'operation_duration_seconds_sum', operation='bind'))
        self.assertEqual(5.0, self.one('agent_state_timestamp_seconds'))

    def test_a_bind_does_not_wait_for_the_disk(self):
        writer = state.StateWriter(self.state_path, 'host1')
        ended = []

        def bind():
            with writer.timed('bind'):
                pass
            writer.xid(condition.Event(RecordsTest.address, 13))
            ended.append(True)

        def slow(*arguments):
            thread = threading.Thread(target=bind, daemon=True)
            thread.start()
            thread.join(scope.HANG)

        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.durable.write', slow))
        writer.write()
        self.assertEqual([True], ended)

    def test_a_disk_that_is_full_stops_nobody(self):
        with open(os.path.join(self.state_path, 'file'), 'wb'):
            pass
        state.StateWriter(
            os.path.join(self.state_path, 'file'), 'host1').write()
