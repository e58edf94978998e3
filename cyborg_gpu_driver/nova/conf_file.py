# SPDX-License-Identifier: Apache-2.0


"""The few options of nova.conf that concern GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova import pci_config

_UNREADABLE = (cfg.Error, OSError, ValueError, OverflowError, RecursionError)
"""The errors that oslo.config or the parser raises for a file: RecursionError
for an option that refers to itself or for JSON that is nested too deeply,
OverflowError for a pattern."""


@dataclasses.dataclass(frozen=True)
class NovaConf:
    """What a host's nova.conf says about its PCI devices and mdevs."""

    paths: tuple[str, ...]
    device_spec: tuple[pci_config.DeviceSpec, ...] = ()
    report_in_placement: bool = False
    enabled_mdev_types: tuple[str, ...] = ()
    post_copy: bool = False
    """``[libvirt] live_migration_permit_post_copy``."""


def read(paths: Sequence[str]) -> NovaConf:
    """Read nova.conf; a later file overrides an earlier one.

    Names and deprecated names are those of nova/conf/pci.py,
    nova/conf/devices.py and nova/conf/libvirt.py of Nova 34.

    :raises InvalidValue: if a file or its content cannot be read.
    """
    conf = cfg.ConfigOpts()
    conf.register_opts([
        cfg.MultiStrOpt('device_spec', default=[], deprecated_opts=[
            cfg.DeprecatedOpt('passthrough_whitelist', group='pci'),
            cfg.DeprecatedOpt('pci_passthrough_whitelist',
                              group='DEFAULT')]),
        cfg.BoolOpt('report_in_placement', default=False)], group='pci')
    conf.register_opt(
        cfg.ListOpt('enabled_mdev_types', default=[],
                    deprecated_name='enabled_vgpu_types'), group='devices')
    conf.register_opt(cfg.BoolOpt(pci_config.POST_COPY, default=False),
                      group='libvirt')
    try:
        conf([], project='nova', default_config_files=list(paths),
             default_config_dirs=[])
        return NovaConf(
            paths=tuple(paths),
            device_spec=pci_config.parse_device_spec(conf.pci.device_spec),
            report_in_placement=conf.pci.report_in_placement,
            enabled_mdev_types=tuple(conf.devices.enabled_mdev_types),
            post_copy=conf.libvirt[pci_config.POST_COPY])
    except _UNREADABLE as error:
        raise exception.InvalidValue(
            what='nova.conf', value=', '.join(paths),
            expected=f'expected files of oslo.config: {error}') from error
