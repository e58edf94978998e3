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

"""The names of Ironic's nodes, traits, deploy templates and steps.

A node whose GPUs can take a layout has the layout's trait. The deploy template
of that name applies the layout, and a flavor requires the trait.
"""

from __future__ import annotations

from cyborg_gpu_driver.report.content import names

KEY = 'nvidia_gpus'
"""The key of the ramdisk's report in Ironic's plugin data."""

PCI_KEY = 'pci_devices'
"""The key there of the report of ironic-python-agent's own collector."""

APPLY_LAYOUT = 'apply_gpu_layout'
"""The deploy and service step."""

LAYOUT_KEY = 'cyborg_gpu_layout'
"""The key of a server's layout, in its metadata and in vendor data."""

HEALTHY = 'CUSTOM_GPU_HEALTHY'
"""The trait of a node whose GPUs were all healthy at its last inspection."""

_LAYOUT = 'CUSTOM_GPU_LAYOUT_'


def layout_trait(layout: str) -> str:
    """Return the trait, and deploy template, of a layout by its name.

    ``all-1g.10gb`` gives ``CUSTOM_GPU_LAYOUT_ALL_1G_10GB``.
    """
    return names.custom('GPU', 'LAYOUT', layout)


def is_layout_trait(trait: str) -> bool:
    """Whether a trait is the trait of a layout."""
    return trait.startswith(_LAYOUT)


def clique_trait(clique: str) -> str:
    """Return the trait of a node with all GPUs in one NVLink clique.

    It has the whole UUID of the cluster: no source says that a part of the
    UUID distinguishes two racks.
    """
    return names.custom('NVLINK', 'CLIQUE', clique)


def count_trait(count: int) -> str:
    """Return the trait of a node with this number of GPUs, of any kind."""
    return names.custom('GPU', 'COUNT', str(count))
