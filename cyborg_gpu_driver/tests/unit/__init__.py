# SPDX-License-Identifier: Apache-2.0

"""The unit tests. How many examples hypothesis tries, ``scope`` says."""

from cyborg_gpu_driver.tests import scope  # noqa: F401
