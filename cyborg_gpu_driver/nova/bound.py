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


"""The accelerator requests of a server when Nova does not ask for them.

Nova's compute manager asks Cyborg when it creates, starts, reboots or
rebuilds a server. It does not ask when it resumes servers at the boot of the
host or when it rescues a server (nova/compute/manager.py of Nova 34:
``_resume_guests_state``, ``rescue_instance``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from cyborg_gpu_driver import exception

LOG = logging.getLogger(__name__)

_PROFILE = 'accel:device_profile'
_LIMIT = 120.0
"""Seconds that one process waits for Cyborg in total. After a power failure
cyborg-api may start later than a GPU host. Nova resumes one server after the
other, so the wait must not start again for each server."""
_PAUSE = 5.0
"""Seconds between two attempts."""


def has_profile(instance: Any) -> bool:
    """Whether the flavor of a server asks Cyborg for accelerators.

    :param instance: Nova's instance.
    """
    return bool(instance.flavor.extra_specs.get(_PROFILE))


class Requests:
    """Reads the bound accelerator requests of servers.

    :param ask: returns the requests of a server from Cyborg, by Nova's
        context and the UUID of the server.
    :param clock: seconds since any point in time.
    :param sleep: waits for a number of seconds.
    """

    def __init__(self, ask: Callable[[Any, str], list[dict[str, Any]]],
                 clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], None] = time.sleep):
        self._ask = ask
        self._clock = clock
        self._sleep = sleep
        self._left = _LIMIT

    def of(self, context: Any, instance: Any) -> list[dict[str, Any]]:
        """Return the requests that are bound to a server on its host.

        :param context: Nova's request context.
        :param instance: Nova's instance.
        :returns: an empty list if the flavor has no device profile.
        :raises RequestsUnknown: if Cyborg does not return them, or if one of
            them is not bound to the node of the server. Its handle would be
            an address on another host.
        """
        if not has_profile(instance):
            return []
        found = self._read(context, instance.uuid)
        for arq in found:
            if arq['state'] != 'Bound' or arq['hostname'] != instance.node:
                raise exception.RequestsUnknown(
                    server=instance.uuid, reason=f'request {arq["uuid"]} is '
                    f'{arq["state"]} on {arq["hostname"]}, not Bound on '
                    f'{instance.node}')
        return found

    def _read(self, context, server):
        while True:
            begun = self._clock()
            try:
                return self._ask(context, server)
            # Keystone, the network and Cyborg each have their own errors.
            except Exception as error:
                if self._left <= 0:
                    raise exception.RequestsUnknown(
                        server=server, reason=str(error)) from error
                LOG.warning(
                    'Cyborg does not return the accelerators of server '
                    '%(server)s: %(error)s. Next attempt in %(pause)d '
                    'seconds', {'server': server, 'error': error,
                                'pause': _PAUSE})
            self._sleep(_PAUSE)
            self._left -= self._clock() - begun
