# SPDX-License-Identifier: Apache-2.0

"""Remembers what was logged, so that a lasting problem is logged once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Hashable
from collections.abc import Iterator

from cyborg_gpu_driver import exception


class LogOnce:
    """The last reason that was logged about each subject.

    The owner logs a reason only if :meth:`is_new` says so, and calls
    :meth:`over` when the problem has gone, so that it is logged if it comes
    back.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, str] = {}

    def is_new(self, reason: str, about: Hashable = None) -> bool:
        """Whether a reason differs from the last one about a subject."""
        if self._last.get(about) == reason:
            return False
        self._last[about] = reason
        return True

    @contextlib.contextmanager
    def noted(self, log: Callable[..., object], text: str,
              about: Hashable = None) -> Iterator[None]:
        """Log an error of the block once, instead of raising it.

        :param log: ``LOG.warning`` or another method of a logger.
        :param text: what failed, for people.
        :param about: the subject; None for the text.
        """
        about = text if about is None else about
        try:
            yield
        except Exception as error:
            reason = exception.steady(error)
            if self.is_new(reason, about):
                log('%s: %s', text, reason,
                    exc_info=not isinstance(error, exception.GpuDriverError))
        else:
            self.over(about)

    def over(self, about: Hashable = None) -> bool:
        """Forget the problem of a subject; return whether there was one."""
        return self._last.pop(about, None) is not None

    def keep(self, subjects: Container[Hashable]) -> None:
        """Forget all problems except those of these subjects."""
        self._last = {about: reason for about, reason in self._last.items()
                      if about in subjects}
