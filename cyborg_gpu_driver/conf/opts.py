# SPDX-License-Identifier: Apache-2.0

"""Options for oslo-config-generator and the documentation."""

from cyborg_gpu_driver.conf import gpu


def list_opts():
    """Every option group with its options (entry point oslo.config.opts)."""
    return [(gpu.gpu_group(), gpu.GPU_OPTS),
            (gpu.policy_group('name'), gpu.POLICY_OPTS)]
