# SPDX-License-Identifier: Apache-2.0

"""What a layout file wants of one GPU, in that GPU's own profiles.

Wanted and live state have different types. :class:`Wanted` says what, never
where. :class:`cyborg_gpu_driver.host.snapshot.model.GpuInstance` is live.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import names


@dataclasses.dataclass(frozen=True)
class WantedInstance:
    """A GPU instance that is wanted, at any placement."""

    profile: model.GpuInstanceProfile
    compute: tuple[int, ...]
    """Slices of each compute instance, the largest first."""

    def __str__(self) -> str:
        if self.compute == (self.profile.slices,):
            return self.profile.name
        counts = collections.Counter(device_name(self.profile, slices)
                                     for slices in self.compute)
        return f'{self.profile.name} ({listed(counts)})'


@dataclasses.dataclass(frozen=True)
class WantedDevices:
    """A number of MIG devices of one name."""

    profile: model.GpuInstanceProfile
    """Of the GPU instance that they are in."""
    slices: int
    """Compute slices of each; the profile's own for a whole instance."""
    count: int
    """1 or more."""

    @property
    def name(self) -> str:
        return device_name(self.profile, self.slices)

    @property
    def most(self) -> int:
        """How many an empty GPU can have, by their compute slices."""
        return (self.profile.slices // self.slices
                * self.profile.max_instances)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The wanted state of one GPU: its MIG mode and MIG devices.

    A layout file counts MIG devices, that is compute instances: three
    ``1c.3g.20gb`` may share one GPU instance or have one each.
    """

    enabled: bool
    """MIG mode."""
    devices: tuple[WantedDevices, ...] = ()
    """By compute slices and name, largest first, each name once."""
    without_mig: bool = False
    """The layout turns MIG mode on for all GPUs, but this one does not
    support MIG: it stays as it is."""

    @property
    def counts(self) -> dict[str, int]:
        """How many MIG devices of each name."""
        return {entry.name: entry.count for entry in self.devices}

    def packed(self) -> tuple[WantedInstance, ...] | None:
        """Return the fewest GPU instances that hold the devices.

        Each device goes, the largest first, into the first GPU instance with
        room. Tools that create one device after the other and fill up the
        last GPU instance produce the same. The number is the smallest one
        for instances of up to four slices; of larger ones a GPU has one.

        :returns: None if there are more devices than an empty GPU has slices
            for.
        """
        found: dict[model.GpuInstanceProfile, list[list[int]]] = (
            collections.defaultdict(list))
        for entry in self.devices:
            if entry.count > entry.most:
                return None
            filled = found[entry.profile]
            for _number in range(entry.count):
                room = entry.profile.slices - entry.slices
                bin_ = next((item for item in filled if sum(item) <= room),
                            None)
                if bin_ is None:
                    filled.append([entry.slices])
                else:
                    bin_.append(entry.slices)
        return tuple(WantedInstance(profile, tuple(compute))
                     for profile, filled in found.items()
                     for compute in filled)

    def __str__(self) -> str:
        if self.without_mig:
            return 'not changed, it does not support MIG'
        if not self.enabled:
            return 'MIG mode off'
        return listed(self.counts) or 'MIG mode on, no instances'


def wanted(gpu: model.Gpu, enabled: bool, devices: Mapping[str, int]
           ) -> Wanted:
    """Convert a layout file's counts to the profiles that NVML lists.

    :param devices: MIG devices by name (``1g.10gb``, ``1c.3g.40gb``).
    :raises InvalidValue: if a name is malformed, if this GPU has no such
        profile, or if MIG is wanted and the GPU does not support it.
    """
    if enabled and gpu.mig is None:
        raise exception.InvalidValue(
            what='MIG mode on for GPU', value=str(gpu.address),
            expected=(condition.obstacle(gpu)
                      or f'{gpu.model or gpu.device_id} does not support MIG')
            + '; leave it out, or give mig-enabled: false')
    found: dict[str, WantedDevices] = {}
    for text, count in devices.items():
        if count:
            item = _devices(gpu, text, count)
            # 1g.5gb and 1c.1g.5gb are the same.
            known = found.get(item.name)
            found[item.name] = dataclasses.replace(
                item, count=count + (known.count if known else 0))
    return Wanted(enabled, tuple(sorted(
        found.values(), key=lambda entry: (
            -entry.profile.slices, entry.profile.name, -entry.slices))))


def device_name(profile: model.GpuInstanceProfile, slices: int) -> str:
    """Return the name of a MIG device of ``slices`` in a GPU instance."""
    return (profile.name if slices == profile.slices
            else f'{slices}c.{profile.name}')


def listed(counts: Mapping[str, int]) -> str:
    """Return a text like ``2 x 1g.10gb, 3g.40gb``."""
    return ', '.join(f'{count} x {name}' if count > 1 else name
                     for name, count in counts.items())


def _devices(gpu: model.Gpu, text: str, count: int) -> WantedDevices:
    name = names.ProfileName.parse(text)
    whole = str(dataclasses.replace(name, compute=None))
    profile = gpu.mig.profile_by_name(whole) if gpu.mig else None
    if profile is None:
        known = ', '.join(sorted(
            item.name for item in (gpu.mig.profiles if gpu.mig else ())))
        raise exception.InvalidValue(
            what='profile name', value=text,
            expected=f'{gpu.model or gpu.device_id} at {gpu.address} has '
                     + (known or 'no profiles'))
    return WantedDevices(profile, name.compute or profile.slices, count)
