# SPDX-License-Identifier: Apache-2.0

"""The cost of a scrape of cyborg-gpu exporter: CPU time and NVML calls.

The host has eight simulated GPUs with seven GPU instances each, and the
exporter runs with --nvml. The shortest CPU time of one scrape counts, because
other load only lengthens it. The NVML calls of the sampler are compared with
those of a bare loop over the same values.

usage: python benchmarks/scrape.py [-f table|json] [--repeat N]

Exits 1 if a scrape takes more than 50 ms or calls NVML at all, or if a round
of samples makes more calls than the bare loop.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
import tempfile
import time
import uuid

import prometheus_client
import pynvml

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent),
                str(pathlib.Path(__file__).resolve().parent)]

import figures  # noqa: E402

from cyborg_gpu_driver.host.snapshot import model  # noqa: E402
from cyborg_gpu_driver.metrics import collect  # noqa: E402
from cyborg_gpu_driver.metrics import sampler  # noqa: E402
from cyborg_gpu_driver.metrics import state  # noqa: E402
from cyborg_gpu_driver.record import gpu as gpu_record  # noqa: E402
from cyborg_gpu_driver.record import store  # noqa: E402
from cyborg_gpu_driver.simulator import platform  # noqa: E402
from cyborg_gpu_driver.simulator.machine import machine as simulated  # noqa: E402

HOST = 'dgx-a100-80'
GPUS = 8
SLICES = 7
LIMIT_MS = 50.0
_ONE_SLICE = 19
"""The profile id of 1g.10gb on an A100."""


def main(argv: list[str] | None = None) -> int:
    arguments = figures.parser(
        'Measure the cost of a scrape.', 20).parse_args(argv)
    machine = simulated.Machine.load(HOST)
    opened = platform.open_platform(machine)
    try:
        with tempfile.TemporaryDirectory() as directory:
            return figures.show(
                measure(machine, opened, directory, arguments.repeat),
                arguments.format)
    finally:
        opened.nvml.reset()
        machine.uninstall()


def measure(machine, opened, directory, repeat):
    addresses = [model.PciAddress.parse(gpu.address) for gpu in machine.gpus]
    for address in addresses:
        divide(opened.nvml, address)
    fill(directory, addresses)
    samples = sampler.Sampler(opened, directory)
    samples.round()
    machine.reset_calls()
    samples.round()
    ours = machine.calls.total()
    machine.reset_calls()
    bare_loop(opened.nvml, addresses)
    bare = machine.calls.total()
    registry = prometheus_client.CollectorRegistry()
    registry.register(collect.Collector(directory, 'host', '1', samples))
    text = prometheus_client.generate_latest(registry)
    machine.reset_calls()
    taken = min(_seconds(registry) for _ in range(repeat))
    calls = machine.calls.total()
    found = [text.count(f'cyborg_gpu_{name}{{'.encode())
             for name in ('assignment_info', 'instance_memory_used_bytes')]
    if found != [GPUS * SLICES, GPUS * SLICES]:
        raise RuntimeError(f'{found} assignments and GPU instances are shown')
    return (
        figures.Figure('assignments', found[0]),
        figures.Figure('GPU instances', found[1]),
        figures.Figure('scrape: CPU time', taken * 1000, 'ms',
                       limit=LIMIT_MS),
        figures.Figure('scrape: NVML calls', calls, 'calls', limit=0),
        figures.Figure('samples: NVML calls', ours, 'calls', floor=bare,
                       limit=bare))


def divide(nvml, address: model.PciAddress) -> None:
    """Create seven GPU instances, each with one compute instance."""
    device = nvml.device(address)
    for _ in range(SLICES):
        made = nvml.create_gpu_instance(device, _ONE_SLICE)
        instance = nvml.call('nvmlDeviceGetGpuInstanceById', device,
                             made.instance_id)
        nvml.call('nvmlGpuInstanceCreateComputeInstance', instance,
                  next(nvml.compute_profiles(instance)).id)


def bare_loop(nvml, addresses) -> None:
    """Read the values of a sample with pynvml alone, with known handles."""
    for address in addresses:
        gpu = nvml.device(address)
        pynvml.nvmlDeviceGetUUID(gpu)
        with contextlib.suppress(pynvml.NVMLError_NotSupported):
            # A GPU in MIG mode has none.
            pynvml.nvmlDeviceGetUtilizationRates(gpu)
        pynvml.nvmlDeviceGetMemoryInfo(gpu)
        pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)
        pynvml.nvmlDeviceGetPowerUsage(gpu)
        pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu)
        pynvml.nvmlDeviceGetMigMode(gpu)
        pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
        for index in range(SLICES):
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            pynvml.nvmlDeviceGetGpuInstanceId(mig)
            pynvml.nvmlDeviceGetMemoryInfo(mig)
        pynvml.nvmlDeviceGetActiveVgpus(gpu)


def fill(directory: str, addresses: list[model.PciAddress]) -> None:
    """Write the records of a busy host and the state of its agent."""
    records = store.of(directory)
    keeper = state.StateWriter(directory, 'host')
    for gpu in addresses:
        records.put(gpu, claims=tuple(
            gpu_record.Claim(
                str(uuid.uuid4()), gpu,
                model.PciAddress(gpu.domain, gpu.bus, 1, slice_),
                'nvidia-474', '1g.10gb', gpu_record.Phase.BOUND, 19,
                model.Placement(slice_, 1), slice_ + 7, since=1.0)
            for slice_ in range(SLICES)),
            reported=gpu_record.Reported(
                '20B2', 'mig', gpu_record.ReportedFacts(
                    uuid=f'GPU-{uuid.uuid4()}'), {}))
    keeper.set(gpus={gpu: state.GpuState(True, tuple(
        state.OfferState('mig', f'{size}g', f'CUSTOM_{size}', 7, 7, 0, 0, 0)
        for size in range(1, 8)), 0, 0) for gpu in addresses})
    with keeper.timed('bind'):
        pass
    keeper.write()


def _seconds(registry):
    begun = time.process_time()
    prometheus_client.generate_latest(registry)
    return time.process_time() - begun


if __name__ == '__main__':
    sys.exit(main())
