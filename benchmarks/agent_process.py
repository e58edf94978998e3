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

"""Our agent of one host in a process of its own, as on a real host.

pynvml is one for a process, and so is a simulated machine.
"""

from __future__ import annotations

import logging
import multiprocessing
import pathlib
import sys
import tempfile
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

# Before all that would choose eventlet.
import cyborg_gpu_driver.demo  # isort: skip # noqa: F401

import pynvml
from keystoneauth1 import adapter
from keystoneauth1 import session
from keystoneauth1 import token_endpoint
from oslo_config import cfg

from cyborg_gpu_driver import agent
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy

TIMEOUT = 120.0
"""Seconds for one answer."""


class AgentProcess:
    """Starts the process; :meth:`close` ends it.

    :param url: of Placement.
    :param host: the compute node's name.
    :param simulated: the machine; all of its GPUs are sliced.
    :param profiles: that are offered.
    """

    def __init__(self, url: str, host: str, simulated: str,
                 profiles: tuple[str, ...]):
        # A fork would have this process's threads and its pynvml.
        context = multiprocessing.get_context('spawn')
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(
            other, url, host, simulated, profiles), daemon=True)
        self._process.start()
        other.close()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(TIMEOUT)
        self._process.kill()

    def report(self) -> list[types.SimpleNamespace]:
        """What the agent would report: the parts of each provider."""
        return [types.SimpleNamespace(**item) for item in self._ask('report')]

    def bind(self, address: str, asked_type: str, handle: str) -> None:
        """:raises RuntimeError: if the agent cannot."""
        self._ask('bind', address, asked_type, handle)

    def unbind(self, address: str, asked_type: str, handle: str) -> None:
        """:raises RuntimeError: if the agent cannot."""
        self._ask('unbind', address, asked_type, handle)

    def masks(self) -> list[list[int]]:
        """Of each GPU, the units that each GPU instance takes.

        As the hardware has them, without a word of the agent.
        """
        return self._ask('masks')

    def _ask(self, *question):
        self._pipe.send(question)
        if not self._pipe.poll(TIMEOUT):
            raise TimeoutError(f'{question[0]}: the agent has not answered '
                               f'within {TIMEOUT:g} s')
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


class _Placement:
    """The part of Cyborg's client of Placement that the agent uses."""

    def __init__(self, url):
        self._adapter = adapter.Adapter(
            session.Session(token_endpoint.Token(url, 'admin')),
            service_type='placement', raise_exc=False)

    def get(self, url, version=None, **_named):
        return self._adapter.get(url, microversion=version)

    def put(self, url, data, version=None, **_named):
        return self._adapter.put(url, json=data, microversion=version)


class _Server:
    """Answers in the agent's process."""

    def __init__(self, url, host, simulated, profiles, directory):
        conf = cfg.ConfigOpts()
        gpu_conf.register_opts(conf)
        conf([], default_config_files=[])
        for option, value in (('state_path', directory),
                              ('simulate', simulated)):
            conf.set_override(option, value, group='gpu')
        client = _Placement(url)
        self._agent = agent.Agent(conf, policies.Settings(
            policies=(policy.Policy('slices', policy.Mode.MIG,
                                    profiles=profiles),),
            health_events=False), host, lambda: client)

    def report(self):
        return [{'name': item.name, 'provider_uuid': item.provider_uuid,
                 'resource_class': item.resource_class,
                 'traits': item.traits,
                 'handles': [(str(handle.address), handle.asked_type)
                             for handle in item.handles]}
                for device in self._agent.report()
                for item in device.deployables]

    def bind(self, *asked):
        self._agent.bind(*asked)

    def unbind(self, *asked):
        self._agent.unbind(*asked)

    def masks(self):
        with pynvml.nvmlLib.machine.operation() as state:
            return [[model.Placement(item.start, item.size).mask
                     for item in gpu.instances.values()]
                    for gpu in state.gpus.values()]


def _serve(pipe, *arguments):
    # It would say that there is no Cyborg to ask for disabled devices.
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as directory:
        server = _Server(*arguments, directory)
        while True:
            try:
                question, *details = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send(getattr(server, question)(*details))
            except Exception as error:
                pipe.send(RuntimeError(f'{question}{tuple(details)}: '
                                       f'{error}'))
