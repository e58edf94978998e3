# SPDX-License-Identifier: Apache-2.0

"""Run a program that ends when the tests end, even if they are killed.

usage: python -m cyborg_gpu_driver.tests.ironic.leash PROGRAM ARGUMENT...
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def put_on(sign: signal.Signals) -> None:
    """Have the kernel signal this process when its parent process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sign)


if __name__ == '__main__':
    put_on(signal.SIGTERM)
    os.execv(sys.argv[1], sys.argv[1:])
