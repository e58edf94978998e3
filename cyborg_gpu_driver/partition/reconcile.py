# SPDX-License-Identifier: Apache-2.0

"""Terms for inconsistencies on a host: values, no I/O.

The records, the hardware, Cyborg's accelerator requests and Placement each
say which server has which part of a GPU. Where two of these accounts
disagree, there is a :class:`Difference`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools

from cyborg_gpu_driver.host.snapshot import model


class Kind(enum.Enum):
    """The kind of a difference."""

    VGPU_GONE = 'vgpu-gone'
    """The vGPU of a bound handle no longer exists."""
    INSTANCE_GONE = 'instance-gone'
    """The GPU instance of a bound handle does not exist."""
    OTHER_TYPE = 'other-type'
    """A vGPU of another type exists in the place of a bound handle's vGPU."""
    GPU_GONE = 'gpu-gone'
    """A handle is bound on a GPU that this machine does not show."""
    NO_REQUEST = 'no-request'
    """Cyborg has no accelerator request for a bound handle."""
    NOT_RECORDED = 'not-recorded'
    """No record has a claim for a bound accelerator request."""
    UNFINISHED = 'unfinished'
    """A bind or unbind did not finish."""
    FOREIGN_VGPU = 'foreign-vgpu'
    """A vGPU that no bind or policy has created."""
    FOREIGN_INSTANCE = 'foreign-instance'
    """A GPU instance that no bind, layout or policy has created."""
    ALLOCATED = 'allocated'
    """Placement has more allocated than is bound."""
    NOT_ALLOCATED = 'not-allocated'
    """Placement has less allocated than is bound."""
    RESERVED = 'reserved'
    """Placement's ``reserved`` is not the number that cannot be created."""
    LAYOUT_CHANGE = 'layout-change'
    """A change of layout did not finish."""
    BAD_RECORD = 'bad-record'
    """The record of a GPU cannot be read, or is damaged."""


_MAY_PASS = frozenset({Kind.NO_REQUEST, Kind.NOT_RECORDED, Kind.ALLOCATED,
                       Kind.NOT_ALLOCATED})
_REPORTED = frozenset({Kind.UNFINISHED, Kind.RESERVED})


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing on which two accounts disagree."""

    kind: Kind
    gpu: model.PciAddress
    subject: str
    """The handle, vGPU, instance or provider that it concerns."""
    text: str
    """What is wrong, for people."""
    remedy: str
    """What to do about it, for people."""
    safe: bool = False
    """Whether it can be repaired without any risk."""

    @property
    def key(self) -> tuple[str, model.PciAddress, str]:
        """A key that is equal when the same difference is found again."""
        return self.kind.value, self.gpu, self.subject

    @property
    def may_pass(self) -> bool:
        """Whether a bind or unbind that is under way may be the cause."""
        return self.kind in _MAY_PASS

    @property
    def by_report(self) -> bool:
        """Whether each report of the agent repairs it."""
        return self.kind in _REPORTED


@dataclasses.dataclass(frozen=True)
class Request:
    """A bound accelerator request with a handle of type MDEV."""

    handle: str
    """UUID of the attach handle."""
    arq: str
    """UUID of the request."""
    server: str | None
    function: model.PciAddress
    """The function that the handle names: the GPU, or one of its VFs."""
    type_id: str
    """``nvidia-474``."""


@dataclasses.dataclass(frozen=True)
class Requests:
    """What Cyborg's accelerator requests use on one host."""

    bound: tuple[Request, ...] = ()
    unsettled: tuple[str, ...] = ()
    """UUIDs of requests that may have a handle on this host that Cyborg
    does not show, because it shows only the handles of bound requests."""

    def of(self, handle: str) -> Request | None:
        """Return the request that has a handle; None if no request has it."""
        return self._by_handle.get(handle)

    @functools.cached_property
    def _by_handle(self) -> dict[str, Request]:
        return {request.handle: request for request in self.bound}


@dataclasses.dataclass(frozen=True)
class Usage:
    """The usage of one provider, in Placement and as it should be."""

    provider: str
    """UUID."""
    profile: str
    type_id: str
    """Of the vGPUs that the provider represents, ``nvidia-474``."""
    used: int
    reserved: int
    wanted: int
    """What ``reserved`` should be."""
    name: str = ''
    """Of the provider, for people."""
