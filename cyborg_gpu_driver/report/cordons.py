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

"""Read from Placement why a GPU is disabled in Cyborg.

Cyborg's API takes no reason (cyborg/api/controllers/v2/devices.py), so
``openstack gpu cordon`` writes it to a trait of the GPU's providers.
"""

from __future__ import annotations

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import provider_tree

LOG = logging.getLogger(__name__)


def of_placement(tree: provider_tree.ProviderTree | None, state_path: str,
                 address: model.PciAddress) -> cordon.Cordon | None:
    """Who disabled a GPU in Cyborg, when and why.

    :param tree: the providers of this host; None does not ask Placement.
    :param state_path: ``[gpu] state_path``.
    :returns: None if no trait of the GPU's providers says it, or Placement
        does not answer.
    """
    if tree is None:
        return None
    known = store.of(state_path).peek(address).reported
    try:
        for uuid in sorted(known.providers) if known else ():
            found = tree.get(f'/resource_providers/{uuid}/traits')
            told = found and cordon.of_traits(found['traits'])
            if told:
                return told
    except Exception as error:
        # The report of the GPUs must not fail because of this.
        LOG.debug('Placement does not say why GPU %(gpu)s is disabled: '
                  '%(error)s', {'gpu': address,
                                'error': exception.steady(error)})
    return None
