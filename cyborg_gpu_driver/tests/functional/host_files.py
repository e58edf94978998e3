# SPDX-License-Identifier: Apache-2.0

"""Files of simulated hosts that tests write and read."""

import dataclasses
import json
import os
import types

import yaml

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator import files as simulator_files


def write_host(directory, gpus, **more):
    """Write a host file; return its path.

    :param gpus: the GPUs, in the form of the file.
    :param more: other keys of the file.
    """
    path = os.path.join(directory, 'host.yaml')
    with open(path, 'w', encoding='utf-8') as stream:
        # JSON is YAML.
        json.dump({'driver_version': '570.124.03',
                   'gpus': gpus, **more}, stream)
    return path


def write_unprepared(directory, name, gpus=None):
    """Write the file of a host as if its GPUs had never been prepared.

    :param name: name of a host that comes with the simulator. Its NVSwitches
        become shared: each server with whole GPUs needs a partition.
    :param gpus: how many of the host's GPUs to keep; None for all.
    """
    with open(os.path.join(os.path.dirname(simulator_files.__file__), 'hosts',
                           f'{name}.yaml'), encoding='utf-8') as stream:
        content = yaml.safe_load(stream)
    for gpu in content['gpus']:
        gpu.pop('mig', None)
        gpu.pop('vfs', None)
        if gpu.get('nvlink') == 'switches':
            content['fabric_mode'] = 1
    content['gpus'] = content['gpus'][:gpus]
    path = os.path.join(directory, 'host.yaml')
    with open(path, 'w', encoding='utf-8') as stream:
        yaml.safe_dump(content, stream)
    return path


def journal(state_path):
    """Return the claims in the GPUs' records, each field in its JSON form."""
    return [
        {field.name: codec.encode(getattr(claim, field.name))
         for field in dataclasses.fields(claim)}
        for record in store.Store(state_path).records().values()
        for claim in record.claims]


def audit(state_path):
    """Return the lines of the audit record, which has one file yet."""
    try:
        with open(os.path.join(state_path, 'audit.jsonl'),
                  encoding='utf-8') as stream:
            return [types.SimpleNamespace(**json.loads(line))
                    for line in stream]
    except FileNotFoundError:
        return []


def damage(state_path, gpu, content='{'):
    """Overwrite a GPU's record with other content; return its path."""
    path = store.Store(state_path).path(model.PciAddress.parse(str(gpu)))
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(content)
    return path
