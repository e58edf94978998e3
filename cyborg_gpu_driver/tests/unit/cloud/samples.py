# SPDX-License-Identifier: Apache-2.0

"""Resource providers of GPUs as plain values."""

from __future__ import annotations

from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.report.content import names

MODEL = 'CUSTOM_GPU_MODEL_A100_SXM4_80GB'


def provider(label='1g.10gb', gpu='0000:07:00.0', host='compute1',
             resource_class=None, total=7, reserved=0, used=0,
             traits=('CUSTOM_GPU_KIND_MIG', MODEL)):
    """The resource provider of a profile on a GPU."""
    name = f'{host}_gpu_{gpu}_{label}'
    if resource_class is None:
        resource_class = ('PGPU' if label == 'passthrough'
                          else names.custom(names.VENDOR, label))
    return facts.Node(
        names.provider_uuid(name), name,
        {resource_class: facts.Inventory(total, reserved, used)},
        frozenset(traits), root=f'root-{host}')
