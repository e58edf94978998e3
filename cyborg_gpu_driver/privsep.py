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

"""The one privileged context of this library (oslo.privsep).

CAP_SYS_ADMIN is what the NVIDIA driver asks of who creates GPU instances,
CAP_DAC_OVERRIDE what writing sysfs control files that belong to root needs,
and CAP_SYS_PTRACE what looking up who has a VFIO device open needs (the
kernel guards ``/proc/<pid>/fd`` so), without which no virtual function that
a guest may hold is ever cleared.
"""

from oslo_privsep import capabilities
from oslo_privsep import priv_context

gpu_context = priv_context.PrivContext(
    'cyborg_gpu_driver',
    cfg_section='cyborg_gpu_privileged',
    pypath=__name__ + '.gpu_context',
    capabilities=[capabilities.CAP_SYS_ADMIN, capabilities.CAP_DAC_OVERRIDE,
                  capabilities.CAP_SYS_PTRACE])
