# SPDX-License-Identifier: Apache-2.0

"""Tests that run the released Ironic and ironic-python-agent."""

from ironic_python_agent import config  # noqa: F401 registers its options
from oslo_service import backend

# Ironic does not use eventlet. Without this call, the first Ironic module to
# be imported would choose the backend, and Ironic's own base test case would
# find a backend already chosen.
backend.init_backend(backend.BackendType.THREADING)
