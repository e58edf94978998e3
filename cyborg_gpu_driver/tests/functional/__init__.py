# SPDX-License-Identifier: Apache-2.0


import os

# Chooses Cyborg's threading backend before a test imports more of Cyborg.
import demo_lib  # noqa: F401
from cyborg_gpu_driver.program.bind import binder

# On a slow machine, an unbind must not reach its time limit.
binder.UNBIND_SECONDS = 300.0

# Without it, the services format all debug messages of each test.
os.environ.setdefault('OS_DEBUG', 'INFO')
