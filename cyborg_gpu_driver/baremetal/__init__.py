# SPDX-License-Identifier: Apache-2.0

"""Bare-metal nodes of Ironic: inspection, first boot, cleaning."""
