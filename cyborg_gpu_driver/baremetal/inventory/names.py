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

"""What Ironic's nodes, traits, deploy templates and steps are called.

A node that can be cut as a layout says has the layout's trait; the deploy
template of that name makes it so; a flavor requires the trait.
"""

from __future__ import annotations

from cyborg_gpu_driver.report.content import names

KEY = 'nvidia_gpus'
"""Of what the ramdisk sends, in Ironic's plugin data."""

PCI_KEY = 'pci_devices'
"""Beside it: what ironic-python-agent's own collector sends."""

APPLY_LAYOUT = 'apply_gpu_layout'
"""Deploy and service step."""

LAYOUT_KEY = 'cyborg_gpu_layout'
"""Of a server's layout, in its metadata and in vendor data."""

HEALTHY = 'CUSTOM_GPU_HEALTHY'
"""The trait of a node whose GPUs were all healthy at its last inspection."""

_LAYOUT = 'CUSTOM_GPU_LAYOUT_'


def layout_trait(layout: str) -> str:
    """The trait, and deploy template, of a layout by its name.

    ``all-1g.10gb`` gives ``CUSTOM_GPU_LAYOUT_ALL_1G_10GB``.
    """
    return names.custom('GPU', 'LAYOUT', layout)


def is_layout_trait(trait: str) -> bool:
    """Whether a trait is that of a layout."""
    return trait.startswith(_LAYOUT)


def clique_trait(clique: str) -> str:
    """The trait of a node all of whose GPUs are in an NVLink clique.

    It has the whole UUID of the cluster: nobody says that a part of it tells
    two racks apart.
    """
    return names.custom('NVLINK', 'CLIQUE', clique)


def count_trait(count: int) -> str:
    """The trait of a node with so many GPUs, of whatever kind."""
    return names.custom('GPU', 'COUNT', str(count))
