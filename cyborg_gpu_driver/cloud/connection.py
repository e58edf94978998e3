# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""A cloud's Cyborg, as its public API answers an administrator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from keystoneauth1.identity import base as identity
from openstack import config
from openstack import connection
from openstack import exceptions

from cyborg_gpu_driver import exception

_ADMIN = 'admin'
"""The role to which Cyborg shows what belongs to other projects."""
_VARIABLES = ('OS_CLOUD', 'OS_AUTH_URL')
_TIMEOUT = 60
"""Seconds for one answer, where the cloud's configuration says nothing."""


def is_named(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment names a cloud."""
    return any(environment.get(name) for name in _VARIABLES)


class Cloud:
    """One cloud; nothing is asked of it before :meth:`get`.

    :param name: of ``clouds.yaml``; None for the one that the environment
        names (``OS_CLOUD``, or ``OS_AUTH_URL`` and the others).
    :raises CloudError: if there is no such cloud.
    """

    def __init__(self, name: str | None = None):
        self.name = (name or os.environ.get('OS_CLOUD')
                     or os.environ.get('OS_AUTH_URL', ''))
        with self._telling():
            self._connection = connection.Connection(
                config=config.OpenStackConfig(
                    override_defaults={'api_timeout': _TIMEOUT}
                ).get_one(cloud=name))

    def get(self, path: str, key: str, **query: str) -> list[dict[str, Any]]:
        """A list of Cyborg's, all projects' and whole.

        Cyborg answers anybody else than an administrator with what belongs
        to his project, and does not say so; such a list is not taken.

        :param path: below ``/v2``, such as ``/devices``.
        :param key: what the answer's list is called.
        :raises CloudError: if there is none.
        """
        with self._telling():
            self._check_role()
            response = self._connection.accelerator.get(path, params=query)
            exceptions.raise_from_response(response)
            answer = response.json()
        found = answer.get(key) if isinstance(answer, dict) else None
        if (not isinstance(found, list)
                or not all(isinstance(item, dict) for item in found)):
            raise self.error(f'{path} is no list of {key}: what answers in '
                             "Cyborg's place is not Cyborg")
        return found

    def error(self, reason: object) -> exception.CloudError:
        """An error of this cloud's, to be raised."""
        return exception.CloudError(cloud=self.name, reason=reason)

    @contextlib.contextmanager
    def _telling(self):
        """Name the cloud in whatever goes wrong.

        keystoneauth raises bare exceptions where credentials are
        incomplete, openstacksdk anything where clouds.yaml is malformed.
        """
        try:
            yield
        except exception.CloudError:
            raise
        except Exception as error:
            raise self.error(str(error) or repr(error)) from error

    def _check_role(self):
        """Other ways to log in than Keystone's know no roles."""
        session = self._connection.session
        if (isinstance(session.auth, identity.BaseIdentityPlugin)
                and _ADMIN not in session.auth.get_access(
                    session).role_names):
            raise self.error(
                f'Cyborg shows the accelerator requests of all projects to '
                f'the role {_ADMIN} alone, which this user does not have')
