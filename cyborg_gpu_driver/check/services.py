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


"""Options of Cyborg, Nova and Placement that affect how they cooperate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from keystoneauth1 import loading
from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import validation

_UNIFIED_LIMITS = 'nova.quota.UnifiedLimitsDriver'
_CREDENTIALS = loading.get_auth_common_conf_options()


@dataclasses.dataclass(frozen=True)
class Cyborg:
    """Options of ``cyborg.conf`` for the agent and the services it uses."""

    host: str
    """``[DEFAULT] host``: the name under which the agent is called."""
    provider_name: str | None = None
    """``[agent] resource_provider_name``; None if the agent chooses it."""
    enabled_drivers: tuple[str, ...] = ()
    service_roles: tuple[str, ...] = ('service',)
    """``[keystone_authtoken] service_token_roles``."""
    has_placement_user: bool = False
    """Whether ``[placement]`` has credentials."""
    helper_command: str | None = None
    """``[cyborg_gpu_privileged] helper_command``."""
    api: tuple[str, int] = ('127.0.0.1', 6666)
    """``[api] host_ip`` and ``port``."""


@dataclasses.dataclass(frozen=True)
class Nova:
    """Options of ``nova.conf`` other than PCI devices and mdevs."""

    sends_service_token: bool = False
    has_service_user: bool = False
    """Whether ``[service_user]`` has credentials."""
    resumes_guests: bool = False
    unified_limits: bool = False
    """Whether ``[quota] driver`` uses Keystone's unified limits."""


def cyborg(conf: cfg.ConfigOpts) -> Cyborg:
    """Read the files of ``cyborg.conf`` that this program started with.

    Names and defaults are those of cyborg/conf/agent.py and
    cyborg/conf/api.py (Cyborg 17), keystonemiddleware and oslo.privsep.

    :param conf: parsed, with ``[DEFAULT] host`` registered.
    :raises InvalidValue: if an option cannot be read.
    """
    conf.register_opts([
        cfg.ListOpt('enabled_drivers', default=['fake_driver']),
        cfg.StrOpt('resource_provider_name')], group='agent')
    conf.register_opts([
        cfg.HostAddressOpt('host_ip', default='127.0.0.1'),
        cfg.PortOpt('port', default=6666)], group='api')
    conf.register_opt(cfg.ListOpt('service_token_roles',
                                  default=['service']),
                      group='keystone_authtoken')
    conf.register_opts(_CREDENTIALS, group='placement')
    conf.register_opt(cfg.StrOpt('helper_command'),
                      group='cyborg_gpu_privileged')
    try:
        return Cyborg(
            host=conf.host, provider_name=conf.agent.resource_provider_name,
            enabled_drivers=tuple(conf.agent.enabled_drivers),
            service_roles=tuple(
                conf.keystone_authtoken.service_token_roles),
            has_placement_user=_has_user(conf.placement),
            helper_command=conf.cyborg_gpu_privileged.helper_command,
            api=(conf.api.host_ip, conf.api.port))
    except (cfg.Error, ValueError) as error:
        raise _invalid('cyborg.conf', list(validation.files(conf)),
                       error) from error


def nova(paths: Sequence[str]) -> Nova:
    """Read ``nova.conf``.

    Names and defaults are those of nova/conf/service_token.py,
    nova/conf/compute.py and nova/conf/quota.py of Nova 34.

    :param paths: the files; a later file overrides an earlier one.
    :raises InvalidValue: if a file or an option cannot be read.
    """
    conf = cfg.ConfigOpts()
    conf.register_opts([
        cfg.BoolOpt('send_service_user_token', default=False),
        *_CREDENTIALS], group='service_user')
    conf.register_opt(cfg.BoolOpt('resume_guests_state_on_host_boot',
                                  default=False))
    conf.register_opt(cfg.StrOpt('driver', default=''), group='quota')
    try:
        conf([], project='nova', default_config_files=list(paths),
             default_config_dirs=[])
        return Nova(
            sends_service_token=conf.service_user.send_service_user_token,
            has_service_user=_has_user(conf.service_user),
            resumes_guests=conf.resume_guests_state_on_host_boot,
            unified_limits=conf.quota.driver == _UNIFIED_LIMITS)
    except (cfg.Error, OSError, ValueError) as error:
        raise _invalid('nova.conf', paths, error) from error


@dataclasses.dataclass(frozen=True)
class Placement:
    """Options of ``placement.conf`` for concurrent requests."""

    randomizes: bool
    """Whether allocation candidates have a random order."""
    tries: int
    """How often Placement tries a claim that loses races."""


def placement(paths: Sequence[str]) -> Placement:
    """Read ``placement.conf``.

    Names and defaults are those of placement/conf/placement.py (Placement
    16).

    :param paths: the files; a later file overrides an earlier one.
    :raises InvalidValue: if a file or an option cannot be read.
    """
    conf = cfg.ConfigOpts()
    conf.register_opts([
        cfg.BoolOpt('randomize_allocation_candidates', default=False),
        cfg.IntOpt('allocation_conflict_retry_count', default=10)],
        group='placement')
    try:
        conf([], project='placement', default_config_files=list(paths),
             default_config_dirs=[])
        return Placement(conf.placement.randomize_allocation_candidates,
                         conf.placement.allocation_conflict_retry_count)
    except (cfg.Error, OSError, ValueError) as error:
        raise _invalid('placement.conf', paths, error) from error


def _has_user(group):
    return bool(group.auth_type or group.auth_section)


def _invalid(what, paths, error):
    return exception.InvalidValue(
        what=what, value=', '.join(paths),
        expected=f'expected files of oslo.config: {error}')
