# SPDX-License-Identifier: Apache-2.0

"""Run upstream's tests of Cyborg on the minicloud, with our GPUs."""
