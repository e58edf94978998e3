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

"""A few simulated hosts, their exporters, and a real Prometheus."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

import fixtures
import prometheus_client
import pynvml
import yaml
from oslo_config import cfg

from cyborg_gpu_driver import agent
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import exporter as exporter_command
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import domains
from cyborg_gpu_driver.metrics import collect
from cyborg_gpu_driver.metrics import owners
from cyborg_gpu_driver.metrics import sampler
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import empty_placement
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host.snapshot import test_domain

RULES = pathlib.Path(__file__).resolve().parents[4] / (
    'etc/prometheus/rules.yaml')

_PATIENCE = 3
"""Seconds that the agent waits for a GPU that hangs."""


def wait_for(what, condition):
    """Wait for the first answer of ``condition`` that is true, and return it.

    :raises AssertionError: with ``what``, after a minute.
    """
    end = time.monotonic() + scope.HANG
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f'waited in vain: {what}')
        time.sleep(0.05)


class _Kept:
    """The latest answers of the hardware or of libvirt, of any age."""

    def __init__(self, answers):
        self.answers = answers

    def take(self):
        return self.answers


class Exporter(fixtures.Fixture):
    """An exporter that serves a host's metrics under the host's own name."""

    host = '127.0.0.1'

    def __init__(self, hostname):
        self.hostname = hostname
        self._samples, self._listing = _Kept({}), _Kept(owners.Listing())

    def _setUp(self):
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(collect.Collector(
            self.state_path, self.host, '1', self._samples, self._listing))
        running, thread = exporter_command.start(f'{self.host}:0',
                                                 self.registry)
        self.port = running.server_address[1]
        self.addCleanup(thread.join)
        self.addCleanup(running.server_close)
        self.addCleanup(running.shutdown)
        state.StateWriter(self.state_path, self.hostname).write()

    def sample(self, machine):
        """Ask the GPUs of a machine, as ``--nvml`` does."""
        with simulator.kept():
            found = sampler.Sampler(platform.open_platform(machine),
                                    self.state_path)
            found.round()
            self._samples.answers = found.take()

    def list_domains(self, machine):
        """Ask libvirt on a machine, as ``--libvirt`` does."""
        with simulator.kept():
            watch = owners.Watch(domains.DomainReader(
                platform.open_platform(machine).libvirt))
            watch.round()
            self._listing.answers = watch.take()

    def put(self, address, **parts):
        """Change the record of a GPU."""
        store.of(self.state_path).put(address, **parts)


def keep_pynvml(fixture):
    """Restore pynvml at the end of a fixture.

    An agent leaves its machine under pynvml.
    """
    stack = contextlib.ExitStack()
    fixture.addCleanup(stack.close)
    stack.enter_context(simulator.kept())


class Agent(fixtures.Fixture):
    """cyborg-agent on a simulated host; one at a time in a process."""

    def __init__(self, exporter, machine):
        super().__init__()
        self._exporter = exporter
        self._machine = machine

    def _setUp(self):
        keep_pynvml(self)
        conf = cfg.ConfigOpts()
        gpu_conf.register_opts(conf)
        conf([], default_config_files=[])
        for name, value in (('simulate', self._machine),
                            ('state_path', self._exporter.state_path),
                            ('health_events', False)):
            conf.set_override(name, value, group='gpu')
        self.agent = agent.Agent(
            conf, policies.read(conf), self._exporter.hostname,
            empty_placement.EmptyPlacement)
        self.agent.report()
        self.machine = pynvml.nvmlLib.machine
        self.gpus = [gpu.address for gpu in self.agent._host.host().gpus]

    def ask(self, gpu, profile):
        """Return the arguments with which Cyborg binds a profile of a GPU."""
        offer = next(
            offer for offer in self.agent._host.offers(
                self.agent._host.gpu(gpu)) if offer.profile == profile)
        taken = {entry.function for entry in self.agent._records.claims()}
        function = next(function for function in offer.parents
                        if function not in taken)
        return str(function), offer.vgpu_type_id, str(uuid.uuid4())

    def bind(self, gpu, profile, server, project):
        """Bind, and start the server that gets the device."""
        asked = self.ask(gpu, profile)
        self.agent.bind(*asked)
        self.start(server, project, asked[2])
        return asked

    def start(self, server, project, *mdevs):
        """Define a server of a project."""
        self.machine.define_domain(server, test_domain.xml(
            server, project, 'gpu.small', mdevs))
        self._exporter.list_domains(self.machine)

    def hang(self, gpu):
        """Make every call about a GPU hang until the fixture ends."""
        # Not earlier: a busy machine may answer slowly for the other GPUs.
        self.agent._node.platform.nvml.timeout = _PATIENCE
        self.machine.hang_gpu(str(gpu))
        self.addCleanup(self._answer, gpu)

    def _answer(self, gpu):
        self.machine.hang_gpu(str(gpu), False)
        wait_for(f'{gpu} answers', lambda: not deadline.stuck())


class Prometheus(fixtures.Fixture):
    """A real Prometheus that scrapes exporters and evaluates our rules.

    :param data: the directory of an existing database, if any.
    """

    def __init__(self, scraped, data=None):
        super().__init__()
        self._data = data
        self._exporters = scraped

    def _setUp(self):
        directory = self.useFixture(fixtures.TempDir()).path
        config = os.path.join(directory, 'prometheus.yml')
        with open(config, 'w', encoding='utf-8') as stream:
            yaml.safe_dump({
                'global': {'scrape_interval': '500ms',
                           'scrape_timeout': '500ms',
                           'evaluation_interval': '500ms'},
                'rule_files': [str(RULES)],
                'scrape_configs': [{
                    'job_name': 'cyborg-gpu',
                    'static_configs': [{'targets': [
                        f'{item.host}:{item.port}'
                        for item in self._exporters]}]}],
            }, stream)
        self._log = os.path.join(directory, 'log')
        with open(self._log, 'wb') as stream:
            process = subprocess.Popen(
                ['prometheus', f'--config.file={config}',
                 f'--storage.tsdb.path={self._data or directory + "/data"}',
                 '--web.listen-address=127.0.0.1:0'],
                stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self._process = process
        self.address = wait_for('Prometheus listens', self._listens)
        wait_for('Prometheus is ready', self._is_ready)

    def _listens(self):
        with open(self._log, encoding='utf-8') as stream:
            text = stream.read()
        if self._process.poll() is not None:
            raise AssertionError(f'Prometheus has ended: {text}')
        found = re.search(r'msg="Listening on".* address=(\S+)', text)
        return found and found[1]

    def _is_ready(self):
        try:
            with urllib.request.urlopen(f'http://{self.address}/-/ready',
                                        timeout=scope.HANG):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False

    def get(self, path, **parameters):
        """Return the data of an answer of the API.

        :raises AssertionError: with the error text of Prometheus.
        """
        url = (f'http://{self.address}/api/v1/{path}?'
               + urllib.parse.urlencode(parameters, doseq=True))
        try:
            with urllib.request.urlopen(url, timeout=scope.HANG) as answer:
                return json.load(answer)['data']
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(
                    f'{parameters}: {json.load(error)["error"]}') from error

    def query(self, expression):
        """Return pairs of labels and current value."""
        return [(item['metric'], float(item['value'][1])) for item
                in self.get('query', query=expression)['result']]


class Dcgm(fixtures.Fixture):
    """Serves dcgm-exporter's metrics of one GPU, with its names and labels.

    Names and units are those of its etc/default-counters.csv.
    """

    host = '127.0.0.1'
    values = {'GPU_UTIL': 40, 'FB_USED': 6000, 'FB_FREE': 18000,
              'POWER_USAGE': 120, 'GPU_TEMP': 55}

    def _setUp(self):
        registry = prometheus_client.CollectorRegistry()
        self._gauges = [
            (prometheus_client.Gauge(
                f'DCGM_FI_DEV_{name}', name, ('gpu', 'UUID', 'Hostname'),
                registry=registry), value)
            for name, value in self.values.items()]
        running, thread = prometheus_client.start_http_server(
            0, self.host, registry)
        self.port = running.server_address[1]
        self.addCleanup(thread.join)
        self.addCleanup(running.server_close)
        self.addCleanup(running.shutdown)

    def know(self, gpu_uuid):
        """Serve metrics of a GPU from now on."""
        for gauge, value in self._gauges:
            gauge.labels('0', gpu_uuid, 'compute1').set(value)


class Cloud(fixtures.Fixture):
    """Four hosts, two projects, and every kind of problem."""

    servers = tuple(str(uuid.UUID(int=number, version=4))
                    for number in (1, 2, 3))

    def _setUp(self):
        keep_pynvml(self)
        self.exporters = [self.useFixture(Exporter(name)) for name
                          in ('compute1', 'compute2', 'compute3')]
        self.dcgm = self.useFixture(Dcgm())
        with Exporter('compute4') as vanishing:
            self.prometheus = self.useFixture(Prometheus(
                (*self.exporters, vanishing, self.dcgm)))
            self._scraped(vanishing)
        broken, busy, stopped = self.exporters
        self._stop(stopped)
        with Agent(busy, 'mixed') as agent:
            self._use(busy, agent)
        with Agent(broken, 'a30x4') as agent:
            self._break(broken, agent)

    def _scraped(self, exporter):
        """Return when Prometheus has what the agent wrote last."""
        written = state.read(exporter.state_path).written
        wait_for(f'{exporter.hostname} is scraped', lambda: any(
            value >= written - 0.001 for _, value in self.prometheus.query(
                'cyborg_gpu_agent_state_timestamp_seconds{Hostname="'
                f'{exporter.hostname}"}}')))

    def _stop(self, exporter):
        """Have an agent that ended an hour ago, after a repair."""
        writer = state.StateWriter(exporter.state_path, exporter.hostname,
                                   lambda: time.time() - 3600)
        writer.reported()
        writer.found(('reserved',), ())
        writer.write()
        self._scraped(exporter)
        writer.found(('reserved',), ('reserved',))
        writer.write()
        with simulator.Machine.load('t4x4') as machine:
            for gpu in machine.gpus:
                machine.work(gpu.address, gpu=60)
            exporter.sample(machine)

    def _use(self, exporter, agent):
        """Use slices and a whole GPU of a healthy host."""
        whole, sliced = agent.gpus[:2]
        agent.bind(sliced, '3g.40gb', self.servers[0], 'beta')
        agent.agent.report()
        exporter.put(whole, tenancy=cleaning.Known(
            cleaning.State.USED, self.servers[:1]))

    def _break(self, exporter, agent):
        """Cause every kind of problem on a host."""
        self._scraped(exporter)
        sliced, unhealthy, hung, disabled = agent.gpus
        self.dcgm.know(store.Store(exporter.state_path).read(
            sliced).reported.facts.uuid)
        agent.bind(sliced, '1g.6gb', self.servers[1], 'alpha')
        lost = agent.bind(disabled, '2g.12gb', self.servers[2], 'alpha')
        agent.agent.unbind(*agent.bind(sliced, '1g.6gb', self.servers[2],
                                       'alpha'))
        for _ in range(3):
            function, _type, handle = agent.ask(unhealthy, '4g.24gb')
            try:
                agent.agent.bind(function, 'nvidia-9999', handle)
            except exception.BindRefused:
                continue
            raise AssertionError('an unknown vGPU type was bound')
        with agent.machine.operation():
            agent.machine.state.gpus[str(disabled)].vgpus.clear()
        agent.machine.set_remapped_rows(str(unhealthy), uncorrected=1,
                                        pending=True)
        agent.hang(hung)
        agent.agent.report()
        self._fail_report(exporter, agent)
        # Neither the agent nor the exporter can read this.
        os.mkdir(os.path.join(exporter.state_path, 'gpus',
                              '0000:ff:00.0.json'))
        agent.agent.report()
        exporter.put(disabled, cordons=(cordon.Cordon(
            cordon.Source.CYBORG, 1.0, 'ann', 'a fan'),))
        exporter.put(
            unhealthy, tenancy=cleaning.Known(cleaning.State.STUCK),
            reported=dataclasses.replace(
                store.Store(exporter.state_path).read(unhealthy).reported,
                mode='passthrough'))
        exporter.put(hung, change=gpu_record.Change(
            hung, spec.MigLayout(True, True)))
        self._pending(exporter, sliced, lost)
        self._scraped(exporter)

    def _fail_report(self, exporter, agent):
        """Make a report without the directory of the records."""
        path = os.path.join(exporter.state_path, 'gpus')
        os.rename(path, f'{path}.away')
        with open(path, 'w', encoding='utf-8'):
            pass
        try:
            agent.agent.report()
        except exception.JournalUnreadable:
            pass
        else:
            raise AssertionError('unreadable records were reported')
        finally:
            os.unlink(path)
            os.rename(f'{path}.away', path)

    def _pending(self, exporter, gpu, like):
        """Record a bind that has begun and not ended."""
        record = store.Store(exporter.state_path).read(gpu)
        exporter.put(gpu, claims=(*record.claims, gpu_record.Claim(
            str(uuid.uuid4()), gpu, gpu, like[1], '2g.12gb',
            gpu_record.Phase.BINDING)))
