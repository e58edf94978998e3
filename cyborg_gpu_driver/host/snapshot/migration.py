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


"""What decides whether a GPU's vGPUs can be live-migrated."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Migration:
    """What NVML reports about one GPU; None where it reports nothing."""

    supported: bool | None = None
    """NVML_VGPU_PGPU_VIRTUALIZATION_CAP_MIGRATION of nvml.h."""
    metadata: str | None = None
    """nvmlDeviceGetPgpuMetadataString. vGPUs can move between GPUs whose
    strings are equal, and not where they differ."""
    ecc: bool | None = None
    """Whether ECC is on. Also None for a GPU that has no ECC."""
