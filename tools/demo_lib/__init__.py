# SPDX-License-Identifier: Apache-2.0


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
