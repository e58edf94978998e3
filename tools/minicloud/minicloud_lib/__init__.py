# SPDX-License-Identifier: Apache-2.0

"""The modules of ``minicloud``, a small real OpenStack on one machine."""
