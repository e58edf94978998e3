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
