# SPDX-License-Identifier: Apache-2.0

"""The failures of a cloud, as messages to the user."""


class MinicloudError(Exception):
    """A failure. Its message goes to stderr unchanged; the exit code is 1."""
