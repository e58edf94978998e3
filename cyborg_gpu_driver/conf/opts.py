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

"""Options for oslo-config-generator and the documentation."""

from cyborg_gpu_driver.conf import gpu


def list_opts():
    """Every option group with its options (entry point oslo.config.opts)."""
    return [(gpu.gpu_group(), gpu.GPU_OPTS),
            (gpu.policy_group('name'), gpu.POLICY_OPTS)]
