# SPDX-License-Identifier: Apache-2.0

"""What the machine has and does now: NVML, sysfs, proc, fabric manager.

What cannot be read raises NvmlError, SysfsError or FabricError, unless the
docstring says otherwise.
"""
