# SPDX-License-Identifier: Apache-2.0


import os

# Chooses Cyborg's threading backend before a test imports more of Cyborg.
import demo_lib  # noqa: F401

# Without it, the services format all debug messages of each test.
os.environ.setdefault('OS_DEBUG', 'INFO')
