# SPDX-License-Identifier: Apache-2.0

"""The time that a full host takes for events between two reports.

The released Placement and Cyborg run in this process, with a simulated host
whose GPUs hold seven 1g.10gb each. The program measures the time:

* from an error of a GPU until all its inventories in Placement are reserved.
  The floor is the time to write as many inventories to Placement.
* from the deletion of a server until its GPU instance is offered again. The
  floor is the time that Placement alone takes for a deletion.
* of concurrent binds. The baseline is binds one after another.
* from a reboot until all GPU instances exist again. The floor is a loop that
  only creates as many GPU instances with pynvml.
* of a layout on GPUs whose MIG mode is off, while NVML takes as long as on
  hardware. The baseline is the same loop, which makes the changing calls of
  NVIDIA's mig-parted in its order, and no other call.

usage: python benchmarks/operations.py [-f table|json] [--repeat N]

Exits 1 if the restoration needs more NVML calls than its limit. It fails if
not all GPU instances exist again.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import logging
import os
import pathlib
import statistics
import sys
import tempfile
import time
import uuid

import pynvml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import figures
import full_host

from cyborg_gpu_driver.cmd import main as command
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator.machine import machine as machine_module

FATAL_XID = 79
"""The GPU has fallen off the bus (NVIDIA's XID errors)."""
TIMEOUT = 60.0
RACING = 14
CALLS_PER_GPU = 560
"""The limit to restore a GPU with seven GPU instances."""
LATENCIES = {'nvmlDeviceSetMigMode': 2.0,
             'nvmlDeviceCreateGpuInstance': 0.1,
             'nvmlDeviceCreateGpuInstanceWithPlacement': 0.1,
             'nvmlGpuInstanceCreateComputeInstance': 0.05,
             'nvmlGpuInstanceCreateComputeInstanceWithPlacement': 0.05}
"""Seconds of each call in :func:`layout`; the others take no time."""
SHARE = 0.8
"""The target of :func:`layout`, as a share of its baseline."""
_LAYOUT = """\
version: v1
mig-configs:
  seven:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}
"""
_INTERVAL = 0.005


def main(argv=None):
    options = figures.parser(
        'Measure events between two reports of a full host.',
        5).parse_args(argv)
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as directory:
            return figures.show(measure(directory, options.repeat),
                                options.format)
    finally:
        logging.disable(logging.NOTSET)


def measure(directory, repeat, host=full_host.HOST):
    """Yield every figure, in the order in which it is shown."""
    bench = full_host.FullHost(directory, host, shared=True)
    try:
        servers = len(bench.servers)
        yield figures.Figure('GPU instances', servers, 'in use')
        yield deletion(bench, repeat)
        yield from racing(bench, repeat)
        yield from reboot(bench, host)
        yield xid(bench)
    finally:
        bench.close()
    yield layout(directory, host, servers)


def deletion(bench, repeat):
    """Measure the time from a server's deletion to the next candidate."""
    taken, floors = [], []
    for _ in range(repeat):
        gone = bench.servers.pop()
        start = time.perf_counter()
        bench.cloud.nova.delete_server(gone.uuid)
        until(lambda: bench.cloud.nova.candidates(full_host.PROFILE),
              'the deleted server can be replaced')
        taken.append(time.perf_counter() - start)
        floors.append(_placement_alone(bench))
        bench.servers.append(
            bench.cloud.nova.create_server(full_host.PROFILE))
    return figures.Figure(
        'delete to offered again', 1e3 * statistics.median(taken), 'ms',
        floor=1e3 * statistics.median(floors))


def _placement_alone(bench):
    """Return the seconds that Placement alone takes for a deletion.

    The consumer has allocations only, and no accelerator of Cyborg.
    """
    nova = bench.cloud.nova
    (candidate, *_) = nova.candidates(full_host.PROFILE)
    consumer = str(uuid.uuid4())
    nova.claim(consumer, candidate)
    start = time.perf_counter()
    bench.cloud.placement.delete(f'/allocations/{consumer}')
    nova.candidates(full_host.PROFILE)
    return time.perf_counter() - start


def racing(bench, repeat):
    """Measure concurrent binds, and the same binds one after another."""
    handles = [full_host.handle(server)
               for server in bench.servers[:RACING]]
    alone, raced = [], []
    for _ in range(repeat):
        for asked in handles:
            bench.driver.unbind(*asked)
        alone += [_seconds(bench.driver.bind, *asked) for asked in handles]
        for asked in handles:
            bench.driver.unbind(*asked)
        with concurrent.futures.ThreadPoolExecutor(len(handles)) as pool:
            raced += [future.result() for future in [
                pool.submit(_seconds, bench.driver.bind, *asked)
                for asked in handles]]
    whole = 1e3 * sum(alone) / repeat
    yield figures.Figure('a bind alone: median',
                         1e3 * statistics.median(alone), 'ms')
    # The last bind waits at most for all the others.
    yield figures.Figure(
        f'{len(handles)} binds at once: 99th percentile',
        1e3 * statistics.quantiles(raced, n=100)[98], 'ms', baseline=whole)


def reboot(bench, host):
    """Measure the time from a reboot until all GPU instances exist."""
    before = instances(bench.machine)
    count = sum(map(len, before.values()))
    bench.driver.stop()
    bench.machine.reboot()
    start = time.perf_counter()
    with (machine_module.kept(), contextlib.redirect_stdout(io.StringIO()),
          contextlib.redirect_stderr(io.StringIO())):
        code = command.main(['--config-file', bench.cloud.config_path,
                             'layout', 'restore'])
        taken = time.perf_counter() - start
        calls = pynvml.nvmlLib.machine.calls.total()
    if code or instances(bench.machine) != before:
        raise RuntimeError('not all GPU instances exist again')
    bare_calls, bare_seconds = bare_loop(host, count)
    yield figures.Figure(
        f'reboot to {count} GPU instances: NVML calls', calls, 'calls',
        floor=bare_calls, limit=CALLS_PER_GPU * len(before))
    yield figures.Figure(
        f'reboot to {count} GPU instances: time', 1e3 * taken, 'ms',
        floor=1e3 * bare_seconds)


def instances(machine):
    """Return profile ids and starts of the GPU instances, by GPU."""
    with machine.operation():
        return {address: sorted((item.profile_id, item.start)
                                for item in gpu.instances.values())
                for address, gpu in machine.state.gpus.items()}


def layout(directory, host, count):
    """Measure a layout from MIG mode off, with the latencies of hardware."""
    state = os.path.join(directory, 'layout.json')
    machine = machine_module.Machine.load(host, state)
    with machine.operation(write=True):
        for gpu in machine.gpus:
            # A100 with virtual functions cannot change its MIG mode.
            gpu.state.vfs, gpu.state.mig, gpu.state.pending = 0, False, False
    paths = [os.path.join(directory, name)
             for name in ('layouts.yaml', 'layout.conf')]
    for path, text in zip(paths, (_LAYOUT, '[gpu]\nstate_path = '
                                  + full_host.subdirectory(directory, 'gpus')
                                  ), strict=True):
        pathlib.Path(path).write_text(text)
    wait = faults.Faults.wait
    faults.Faults.wait = lambda _, name: time.sleep(LATENCIES.get(name, 0.0))
    try:
        start = time.perf_counter()
        with (machine_module.kept(), contextlib.redirect_stdout(io.StringIO()
              ), contextlib.redirect_stderr(io.StringIO())):
            code = command.main([
                '--simulate', host, '--state', state, '--config-file',
                paths[1], 'layout', 'apply', '-f', paths[0], '-c', 'seven'])
        taken = time.perf_counter() - start
        _, bare = bare_loop(host, count)
    finally:
        faults.Faults.wait = wait
    if code or sum(map(len, instances(machine).values())) != count:
        raise RuntimeError('not all GPU instances exist')
    return figures.Figure(
        f'MIG mode off to {count} GPU instances, with latencies: time',
        1e3 * taken, 'ms', baseline=1e3 * bare, target=1e3 * SHARE * bare)


def bare_loop(host, count):
    """Create GPU instances on a new host; return NVML calls and seconds."""
    with machine_module.kept(), machine_module.Machine.load(host) as machine:
        start = time.perf_counter()
        pynvml.nvmlInit()
        try:
            gpus = [pynvml.nvmlDeviceGetHandleByIndex(index)
                    for index in range(pynvml.nvmlDeviceGetCount())]
            for gpu in gpus:
                pynvml.nvmlDeviceSetMigMode(
                    gpu, pynvml.NVML_DEVICE_MIG_ENABLE)
            profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(
                gpus[0], pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE).id
            for number in range(count):
                made = pynvml.nvmlDeviceCreateGpuInstance(
                    gpus[number % len(gpus)], profile)
                info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    made, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE,
                    pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
                pynvml.nvmlGpuInstanceCreateComputeInstance(made, info.id)
        finally:
            pynvml.nvmlShutdown()
        return machine.calls.total(), time.perf_counter() - start


def xid(bench):
    """Measure the time from an XID until the whole GPU is reserved."""
    address = bench.machine.gpus[0].address
    for server in bench.servers:
        if _is_on(bench, server, address):
            bench.cloud.nova.delete_server(server.uuid)
    bench.cloud.report()
    providers = [
        provider['uuid'] for name, provider
        in bench.cloud.placement.providers().items() if address in name]
    if is_closed(bench, providers):
        raise RuntimeError(f'{address} has nothing to offer')
    start = time.perf_counter()
    bench.machine.raise_xid(address, FATAL_XID)
    until(lambda: is_closed(bench, providers), 'everything is reserved')
    return figures.Figure('XID to reserved',
                          1e3 * (time.perf_counter() - start), 'ms',
                          floor=1e3 * _seconds(_reserve, bench, providers))


def _reserve(bench, providers):
    """Write the unchanged inventories of each provider, and read them."""
    placement = bench.cloud.placement
    for provider in providers:
        url = f'/resource_providers/{provider}/inventories'
        placement.put(url, placement.get(url))
    is_closed(bench, providers)


def _is_on(bench, server, address):
    return any(provider['uuid'] in server.providers and address in name
               for name, provider in bench.cloud.placement.providers().items())


def is_closed(bench, providers):
    """Whether the inventories of the providers are all reserved."""
    return all(item['reserved'] == item['total'] for provider in providers
               for item in bench.cloud.placement.inventories(
                   provider).values())


def _seconds(function, *arguments):
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def until(condition, what):
    """Wait until a condition is true, for at most a minute."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f'{TIMEOUT:.0f} s have passed and not: {what}')
        time.sleep(_INTERVAL)


if __name__ == '__main__':
    sys.exit(main())
