# SPDX-License-Identifier: Apache-2.0

"""The records of the GPUs, which outlive processes and reboots."""
