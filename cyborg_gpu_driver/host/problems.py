# SPDX-License-Identifier: Apache-2.0

"""Collects for the snapshot what could not be read, and logs it once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from cyborg_gpu_driver import exception

LOG = logging.getLogger(__name__)


class Problems:
    """What could not be read of one thing in one snapshot."""

    def __init__(self, found: Iterable[str] = ()):
        self._found: list[str] = list(found)

    def add(self, reason: str) -> None:
        if reason not in self._found:
            self._found.append(reason)

    @contextlib.contextmanager
    def noted(self, what: str) -> Iterator[None]:
        """Note an error of NVML or sysfs, and continue after the block.

        A GPU that does not answer is not queried further.

        :raises NvmlNotAnswering: if the block raises it.
        """
        try:
            yield
        except exception.NvmlNotAnswering:
            raise
        except exception.GpuDriverError as error:
            self.add(f'{what}: {error}')

    def all(self) -> tuple[str, ...]:
        return tuple(self._found)


class Chronicle:
    """Logs each problem when it appears and when it is over."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, ...]] = {}

    def tell(self, current: Mapping[str, tuple[str, ...]]) -> None:
        """Log what differs from the problems of the last snapshot."""
        for name in sorted({*current, *self._said}):
            now = current.get(name, ())
            before = self._said.get(name, ())
            for reason in now:
                if reason not in before:
                    LOG.warning('%(what)s: %(reason)s',
                                {'what': name, 'reason': reason})
            for reason in before:
                if reason not in now:
                    LOG.warning('%(what)s: no longer a problem: %(reason)s',
                                {'what': name, 'reason': reason})
        self._said = {name: reasons for name, reasons in current.items()
                      if reasons}
