# SPDX-License-Identifier: Apache-2.0

"""A client of Placement that uses the credentials of cyborg-agent."""

from __future__ import annotations

from typing import Any

from keystoneauth1 import exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from cyborg_gpu_driver import exception

_GROUP = 'placement'
_TIMEOUT = 60
"""Timeout of a request in seconds, unless the configuration sets one."""


class Placement:
    """A client like Cyborg's own, with the methods that the driver needs.

    :param conf: cyborg.conf, whose ``[placement]`` has the credentials.
    :raises CloudError: if it has no usable credentials.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        loading.register_auth_conf_options(conf, _GROUP)
        loading.register_session_conf_options(conf, _GROUP)
        loading.register_adapter_conf_options(conf, _GROUP)
        conf.set_default('service_type', _GROUP, _GROUP)
        if conf.placement.timeout is None:
            conf.set_default('timeout', _TIMEOUT, _GROUP)
        try:
            auth = loading.load_auth_from_conf_options(conf, _GROUP)
            if auth is None:
                raise _error('[placement] auth_type is not set')
            self._adapter = loading.load_adapter_from_conf_options(
                conf, _GROUP, session=loading.load_session_from_conf_options(
                    conf, _GROUP, auth=auth))
        except (exceptions.ClientException, cfg.Error) as error:
            raise _error(error) from error

    def get(self, url: str, version: str) -> Any:
        """Send a GET request and return the response, whatever its status."""
        return self._ask('GET', url, version)

    def put(self, url: str, data: Any, version: str) -> Any:
        """Send a PUT request; otherwise like :meth:`get`."""
        return self._ask('PUT', url, version, json=data)

    def _ask(self, method, url, version, **kwargs):
        try:
            return self._adapter.request(
                url, method, microversion=version, raise_exc=False, **kwargs)
        except exceptions.ClientException as error:
            raise _error(error) from error


def _error(reason):
    return exception.CloudError(cloud='of cyborg.conf', reason=reason)
