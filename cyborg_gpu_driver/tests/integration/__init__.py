# SPDX-License-Identifier: Apache-2.0


# Chooses Cyborg's threading backend before a test imports more of Cyborg.
import demo_lib  # noqa: F401
