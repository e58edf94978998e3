# SPDX-License-Identifier: Apache-2.0

"""The agent of one host, in a process of its own as on a real host.

A process has only one pynvml, and therefore only one simulated machine.
"""

from __future__ import annotations

import logging
import multiprocessing
import pathlib
import sys
import tempfile
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / 'tools'))

# Imported before the modules that would select eventlet.
import demo_lib  # isort: skip # noqa: F401

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
from cyborg_gpu_driver.program.bind import binder

TIMEOUT = 120.0
"""Seconds to wait for one answer of the agent."""


class AgentProcess:
    """An agent in a process that starts here and that :meth:`close` ends.

    :param url: the URL of Placement.
    :param host: the compute node's name.
    :param simulated: the simulated machine. All of its GPUs are sliced.
    :param profiles: the MIG profiles that the agent offers.
    """

    def __init__(self, url: str, host: str, simulated: str,
                 profiles: tuple[str, ...]):
        # A forked process would inherit this process's pynvml and what its
        # threads hold.
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
        """Return what the agent reports, one item per resource provider."""
        return [types.SimpleNamespace(**item) for item in self._ask('report')]

    def bind(self, address: str, asked_type: str, handle: str) -> None:
        """:raises RuntimeError: if the bind fails."""
        self._ask('bind', address, asked_type, handle)

    def unbind(self, address: str, asked_type: str, handle: str) -> None:
        """:raises RuntimeError: if the unbind fails."""
        self._ask('unbind', address, asked_type, handle)

    def masks(self) -> list[list[int]]:
        """Return, for each GPU, the mask of units of each GPU instance.

        The simulated hardware answers, not the agent.
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
    """The part of Cyborg's Placement client that the agent uses."""

    def __init__(self, url):
        self._adapter = adapter.Adapter(
            session.Session(token_endpoint.Token(url, 'admin')),
            service_type='placement', raise_exc=False)

    def get(self, url, version=None, **_named):
        return self._adapter.get(url, microversion=version)

    def put(self, url, data, version=None, **_named):
        return self._adapter.put(url, json=data, microversion=version)


class _Server:
    """Answers the questions of :class:`AgentProcess` in its process."""

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
        # The agent's own limit is for Cyborg, which may ask again later.
        binder.UNBIND_SECONDS = TIMEOUT

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
        machine = pynvml.nvmlLib.machine
        with machine.operation():
            return [[model.Placement(item.start, item.size).mask
                     for item in gpu.instances.values()]
                    for gpu in machine.state.gpus.values()]


def _serve(pipe, *arguments):
    # The agent would log that it cannot ask Cyborg for disabled devices.
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
