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

"""A day of a simulated cloud in a real Prometheus, for pictures.

The agent of each host binds and unbinds on simulated GPUs, and the exporter of
the host is read every four minutes of that day. promtool loads these samples,
and then the results of the recording rules for them. The alerts are those that
a Prometheus with the alert rules of this project fires at the end of the day.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import random
import re
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from prometheus_client.openmetrics import exposition

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.tests.unit.metrics import monitored

DAY, STEP, PITCH = 86400, 240, 1920
"""Seconds of the day, between two scrapes, and between two points."""
BLOCK = 7200
"""Seconds in a block of Prometheus, which begins at a multiple of them."""
HOSTS = {'compute1': 'a30x4', 'compute2': 'mixed', 'compute3': 'dgx-a100-40'}
PROJECTS = ('analytics', 'rendering', 'training')
SECONDS = 0.8, 0.6
"""The duration of an operation on hardware: median, and sigma of its log."""
AGE = 30
"""Seconds from a report to the next scrape."""


class _Host:
    """A day of one host."""

    def __init__(self, name: str, exporter: Any, agent: Any, begin: float):
        self.name = name
        self._exporter = exporter
        self._agent = agent
        self._choose = random.Random(name)
        self._bound: list[tuple[Any, float]] = []
        self.now = begin
        self._registry = exporter.registry
        keeper = agent.agent._observer._keeper
        keeper._clock = lambda: self.now
        keeper._timer = self._timer
        self._ticks = 0.0
        self._hangs = False

    def _timer(self) -> float:
        """Return ticks as of real hardware; simulated hardware is too fast."""
        self._ticks += self._choose.lognormvariate(
            math.log(SECONDS[0]), SECONDS[1])
        return self._ticks

    def step(self, part: float) -> None:
        """Play what happens between two scrapes.

        :param part: how much of the day is over.
        """
        wanted = 3 + 5 * (1 - math.cos(2 * math.pi * part)) / 2
        for asked, until in list(self._bound):
            if until < self.now:
                self._bound.remove((asked, until))
                self._agent.agent.unbind(*asked)
        if len(self._bound) < wanted and self._choose.random() < 0.3:
            self._bind()
        if self.name == 'compute1':
            self._break(part)
            self._warm()
        # The agent of one host stops reporting for a while.
        if self.name != 'compute2' or not 0.55 < part < 0.57:
            self._agent.agent.report()

    def _bind(self) -> None:
        gpus = self._agent.gpus
        # The other GPUs of this host remain free for the failures.
        gpu = self._choose.choice(
            gpus[:2] if self.name == 'compute1' else gpus)
        host = self._agent.agent._host
        offers = [offer for offer in host.offers(host.gpu(gpu))
                  if offer.creatable and offer.vgpu_type_id]
        if not offers:
            return
        offer = self._choose.choice(offers[:2])
        server = str(uuid.UUID(int=self._choose.getrandbits(128), version=4))
        project = self._choose.choice(PROJECTS)
        with contextlib.suppress(exception.BindRefused):
            asked = self._agent.bind(gpu, offer.profile, server, project)
            self._bound.append(
                (asked, self.now + self._choose.uniform(2, 9) * 3600))

    def _break(self, part: float) -> None:
        """Cause the failures of some times of the day."""
        unhealthy, hung = self._agent.gpus[2:4]
        machine = self._agent.machine
        if 0.72 < part < 0.723:
            machine.set_remapped_rows(str(unhealthy), uncorrected=1,
                                      pending=True)
        if part > 0.985 and self._choose.random() < 0.8:
            function, _type, handle = self._agent.ask(
                unhealthy, self._agent.agent._host.offers(
                    self._agent.agent._host.gpu(unhealthy))[0].profile)
            with contextlib.suppress(exception.GpuDriverError):
                self._agent.agent.bind(function, 'nvidia-9999', handle)
        if 0.97 < part < 0.973:
            with machine.operation():
                machine.state.gpus[str(self._agent.gpus[0])].vgpus.clear()
        if part > 0.995 and not self._hangs:
            self._hangs = True
            self._agent.hang(hung)

    def _warm(self) -> None:
        """Set the temperature of the GPUs by the number of their binds."""
        machine = self._agent.machine
        for gpu in self._agent.gpus[:3]:
            bound = len(self._agent.agent._journal.entries(gpu))
            machine.set_health(str(gpu), celsius=33 + 11 * bound
                               + self._choose.randrange(4))
        if not self._hangs:
            self._exporter.sample(machine)

    def scrape(self) -> Iterator[str]:
        """Yield the samples of a scrape with their time."""
        text = exposition.generate_latest(self._registry).decode()
        for line in text.splitlines():
            if line.startswith('#'):
                continue
            yield f'{line} {self.now + AGE:.3f}\n'


def day(path: pathlib.Path, end: float, hosts: Mapping[str, str],
        length: float) -> None:
    """Write the samples of the time before ``end``."""
    # The last scrape is just before the end.
    times = [end - length + STEP * (number + 1) - AGE - 5
             for number in range(int(length / STEP))]
    with path.open('w', encoding='utf-8') as stream:
        for name, machine in hosts.items():
            with (monitored.Exporter(name) as exporter,
                  monitored.Agent(exporter, machine) as agent):
                host = _Host(name, exporter, agent, times[0])
                for number, host.now in enumerate(times):
                    host.step(number / len(times))
                    stream.writelines(host.scrape())
        stream.write('# EOF\n')


@contextlib.contextmanager
def prometheus(hosts: Mapping[str, str] = HOSTS, length: float = DAY,
               end: float | None = None) -> Iterator[tuple[Any, float]]:
    """Run a Prometheus with the data of the day; yield it and the day's end.

    :param hosts: the simulated machine of each host, by the host's name.
    :param length: the length of the day in seconds.
    :param end: the end of the day in seconds since the epoch; now by default.
    """
    end = time.time() if end is None else end
    with tempfile.TemporaryDirectory() as directory:
        data = os.path.join(directory, 'data')
        samples = pathlib.Path(directory, 'samples')
        day(samples, end, hosts, length)
        _promtool('openmetrics', str(samples), data)
        with monitored.Prometheus((), data=data) as running:
            # promtool evaluates block by block, and ends at a block in which
            # less than an interval is left. So start with a whole block.
            start = (end - length) // BLOCK * BLOCK
            _promtool('rules', f'--start={start:.0f}',
                      f'--end={end:.0f}', f'--eval-interval={STEP}s',
                      f'--url=http://{running.address}',
                      f'--output-dir={data}', str(monitored.RULES))
        with monitored.Prometheus((), data=data) as running:
            yield running, end


def _promtool(*arguments):
    subprocess.run(
        ['promtool', 'tsdb', 'create-blocks-from', *arguments],
        check=True, capture_output=True)


def wait_for_alerts(running: Any) -> None:
    """Wait until an alert fires.

    :raises AssertionError: if none fires, for example because the data of the
        day took minutes to make and is too old for Prometheus.
    """
    monitored.wait_for('an alert fires', lambda: running.query(
        'ALERTS{alertstate="firing"}'))


def answers(running: Any, end: float, dashboard: dict[str, Any],
            variables: dict[str, str]) -> dict[str, Any]:
    """Return the answers of Prometheus to the queries of a dashboard.

    :param variables: the chosen values of variables; the others are ``All``.
    """
    found = {}
    for panel in dashboard['panels']:
        for target in panel.get('targets', ()):
            expression = target['expr']
            for item in dashboard['templating']['list']:
                expression = expression.replace(
                    f'${item["name"]}', variables.get(item['name'], '.*'))
            expression = expression.replace('$__rate_interval', '34m')
            found[f'{panel["id"]}{target["refId"]}'] = {
                'expr': target['expr'],
                'series': _series(running, end, target, expression)}
    return {'variables': variables, 'panels': found}


def _series(running, end, target, expression):
    used = re.findall(r'\{\{(\w+)\}\}', target.get('legendFormat', ''))
    if target['instant']:
        # Only the running Prometheus has the alerts, so ask for those of now.
        items = running.get('query', query=expression, time=(
            time.time() if 'ALERTS' in expression else end))
        return [{'labels': _labels(target, item['metric'], used),
                 'values': [_rounded(item['value'][1])]}
                for item in items['result']]
    times = [end - DAY + PITCH * number
             for number in range(DAY // PITCH + 1)]
    items = running.get('query_range', query=expression, start=times[0],
                        end=times[-1], step=PITCH)
    found = []
    for item in items['result']:
        known = {round(at): value for at, value in item['values']}
        found.append({
            'labels': _labels(target, item['metric'], used),
            'values': [_rounded(known[round(at)]) if round(at) in known
                       else None for at in times]})
    return found


def _labels(target, labels, used):
    return {name: text for name, text in labels.items() if name in used
            or (target.get('format') == 'table'
                and not name.startswith('__'))}


def _rounded(text):
    value = float(text)
    return float(f'{value:.4g}') if math.isfinite(value) else None
