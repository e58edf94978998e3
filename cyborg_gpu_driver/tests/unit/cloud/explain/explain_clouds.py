# SPDX-License-Identifier: Apache-2.0
"""Small clouds and requests as plain values."""

from __future__ import annotations

import json

from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.partition import cordon

SLICE = 'CUSTOM_NVIDIA_1G_10GB'
THIRD = 'CUSTOM_NVIDIA_3G_40GB'
A100, H100 = 'CUSTOM_GPU_MODEL_A100', 'CUSTOM_GPU_MODEL_H100'
GPU, OTHER_GPU = '0000:07:00.0', '0000:0f:00.0'
LABELS = {'PGPU': 'passthrough', SLICE: '1g.10gb', THIRD: '3g.40gb'}


def device(uuid, host='compute1', gpu='', told=(), **kwargs):
    """A device of Cyborg, with the cordons that the agent has reported."""
    return cyborg.Device(
        uuid=uuid, hostname=host, std_board_info=json.dumps({'address': gpu}),
        vendor_board_info=json.dumps({'cordons': cordon.to_json(told)}),
        **kwargs)


def inventory(total=4, **changes):
    return facts.Inventory(total, **changes)


def node(name=SLICE, has=None, gpu=GPU, host='compute1', traits=(A100,),
         holders=None):
    """A GPU's provider whose inventory of the class ``name`` is ``has``."""
    title = f'{host}_gpu_{gpu}_{LABELS.get(name, "x")}'
    return facts.Node(
        f'uuid of {title}', title, {name: has or inventory()},
        frozenset({'OWNER_CYBORG', *traits}),
        {consumer: {name: 1} for consumer in holders or ()})


def tree(*below, name='compute1', traits=('COMPUTE_ACCELERATORS',), **has):
    """A compute node with its inventories and the providers below it."""
    has = {'VCPU': inventory(8), 'MEMORY_MB': inventory(8192), **has}
    return facts.Tree(facts.Node(f'uuid of {name}', name, has,
                                 frozenset(traits)), below)


def known(*trees, **changes):
    """The facts of a healthy cloud whose GPU providers are all Cyborg's.

    Placement has one candidate for each host, with all providers.

    :param changes: facts that differ.
    """
    trees = trees or (tree(node()),)
    nodes = [one for item in trees for one in item.below]
    usual = {
        'trees': trees,
        'services': {item.root.uuid: facts.Service(item.name, 'nova')
                     for item in trees},
        'devices': tuple(device(f'device of {item.name}', item.name)
                         for item in trees),
        'deployables': {one.uuid: 7 for one in nodes}, 'arqs': (),
        'servers': {'s1': 'trainer', 's2': 'desktop'},
        'answer': facts.Answer({item.root.uuid: (frozenset(
            one.uuid for one in (item.root, *item.below)),)
            for item in trees}),
        'classes': frozenset(name for one in nodes
                             for name in one.inventories)}
    return facts.Facts(**{**usual, **changes})


def profile(*groups):
    """A request for a device profile alone."""
    return request.make(None, 'gpus', groups or [{f'resources:{SLICE}': '1'}])


def flavor(groups=({f'resources:{SLICE}': '1'},), extra_specs=None,
           **changes):
    """A request for a small flavor with a device profile."""
    return request.make(request.Flavor(
        'small', **{'vcpus': 1, 'ram': 512, **changes},
        extra_specs=extra_specs or {}), 'gpus', groups)


def wish(name=SLICE, count=1, required=(), forbidden=()):
    """A group of a device profile."""
    return {f'resources:{name}': str(count),
            **{f'trait:{trait}': 'required' for trait in required},
            **{f'trait:{trait}': 'forbidden' for trait in forbidden}}
