# SPDX-License-Identifier: Apache-2.0

"""The layout files that ``[gpu_baremetal] layout_files`` names."""

from __future__ import annotations

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import baremetal
from cyborg_gpu_driver.partition.layout import file as layout_file


def read(conf: cfg.ConfigOpts) -> tuple[layout_file.LayoutFile, ...]:
    """Return the operator's layouts, in the order of the files.

    :raises InvalidConfiguration: naming the file that cannot be read.
    :raises DocumentError: naming file and entry.
    """
    return tuple(_read(path)
                 for path in conf[baremetal.GROUP].layout_files)


def _read(path: str) -> layout_file.LayoutFile:
    try:
        with open(path, encoding='utf-8') as stream:
            text = stream.read()
    except (OSError, ValueError) as error:
        raise exception.InvalidConfiguration(
            group=baremetal.GROUP, option='layout_files', value=path,
            reason=str(error)) from error
    return layout_file.LayoutFile.parse(text, path)
