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


"""The released Placement and Cyborg in one process, for demonstration.

The demonstration (``tools/demo``) and the functional tests share this
package: the released services, unmodified, on SQLite and on loopback, with no
message broker and no Keystone. The driver itself never imports it.
"""

import contextlib

from oslo_service import backend

# Select the backend as cyborg.cmd does, before Nova selects eventlet.
with contextlib.suppress(ValueError):
    backend.init_backend(backend.BackendType.THREADING)
