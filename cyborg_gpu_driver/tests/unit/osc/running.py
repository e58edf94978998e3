# SPDX-License-Identifier: Apache-2.0

"""Run a command of ``openstack gpu`` as the client runs it."""

from __future__ import annotations

import contextlib
import io
import json
import types

import fixtures


class Openstack:
    """The client of a user who has logged in to a cloud.

    :param cloud: the cloud that the commands query.
    """

    def __init__(self, cloud):
        self._manager = types.SimpleNamespace(gpu=cloud)

    def run(self, command, *arguments, answer='', code=0):
        """Run a command and return its output and its standard error.

        :param answer: the text that the user types.
        :param code: the expected exit code; None for any.
        """
        output, errors = io.StringIO(), io.StringIO()
        app = types.SimpleNamespace(client_manager=self._manager,
                                    stdout=output)
        made = command(app, None)
        parsed = made.get_parser('openstack gpu').parse_args(arguments)
        with contextlib.redirect_stderr(errors), \
                fixtures.MonkeyPatch('sys.stdin', io.StringIO(answer)):
            found = made.run(parsed)
        if code not in (None, found):
            raise AssertionError(f'exit code {found}: {output.getvalue()}'
                                 f'{errors.getvalue()}')
        return output.getvalue(), errors.getvalue()

    def rows(self, command, *arguments, **kwargs):
        """The rows that a command prints as JSON."""
        return json.loads(self.run(command, *arguments, '-f', 'json',
                                   **kwargs)[0])
