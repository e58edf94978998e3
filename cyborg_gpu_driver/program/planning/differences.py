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

"""Compare journal, hardware, Cyborg and Placement. Pure.

Unknown facts are not differences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.record import gpu as gpu_record

_REPAIR = '"cyborg-gpu doctor --repair" repairs it'
_RESTORE = '"cyborg-gpu layout restore" restores what is bound'
_PASSING = ('perhaps its server is being created or deleted now; if the '
            'difference persists, check whether the server still exists')
_OF_HOST = frozenset({reconcile.Kind.GPU_GONE, reconcile.Kind.BAD_RECORD,
                      reconcile.Kind.EARLIER_DRIVER})
_OF_REQUESTS = frozenset({reconcile.Kind.NO_REQUEST,
                          reconcile.Kind.NOT_RECORDED})
_OF_USAGES = frozenset({reconcile.Kind.ALLOCATED,
                        reconcile.Kind.NOT_ALLOCATED,
                        reconcile.Kind.RESERVED})


@dataclasses.dataclass(frozen=True)
class Facts:
    """The known facts of one GPU at one moment."""

    gpu: model.Gpu
    record: gpu_record.GpuRecord = gpu_record.GpuRecord()
    governed: bool = True
    """Whether this library manages the vGPUs and instances on the GPU."""
    claims: reconcile.Claims | None = None
    """Cyborg's requests; None if Cyborg could not be asked."""
    usages: tuple[reconcile.Usage, ...] | None = ()
    """Usages of the GPU's providers that Placement returned; None if
    Placement could not be asked."""
    users: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of vGPUs that are or may be in use, and what uses them."""
    in_use: Mapping[model.Placement, str] | None = None
    """Instances in use and what uses them; None if unknown."""
    boot: str = ''
    """Boot id of the machine. An instance of a claim of an earlier boot is
    gone, whatever is in its place."""

    @property
    def entries(self) -> tuple[journal.Entry, ...]:
        """The claims on this GPU."""
        return self.record.claims


def compare(facts: Facts) -> tuple[reconcile.Difference, ...]:
    """All differences between two sources about one GPU."""
    found = [*_layout(facts)]
    if condition.doubts(facts.gpu):
        return tuple(found)
    for entry in facts.entries:
        found.extend(_of_entry(facts, entry))
    if facts.governed:
        found.extend(_not_recorded(facts))
        found.extend(_foreign_vgpus(facts))
        found.extend(_foreign_instances(facts))
    found.extend(_of_placement(facts))
    return tuple(found)


def could_find(facts: Facts | None, kind: reconcile.Kind) -> bool:
    """Whether a comparison had the facts to find a kind of difference.

    If not, a difference that was found before may still exist.

    :param facts: of the GPU; None if the GPU was not compared.
    """
    if kind in _OF_HOST:
        return True
    if facts is None:
        return False
    if condition.doubts(facts.gpu):
        return kind is reconcile.Kind.LAYOUT_CHANGE
    if kind in _OF_REQUESTS:
        return facts.claims is not None
    if kind in _OF_USAGES:
        return facts.usages is not None
    return (kind is not reconcile.Kind.FOREIGN_INSTANCE
            or facts.in_use is not None)


def absent(entries: Iterable[journal.Entry], host: model.Host
           ) -> tuple[reconcile.Difference, ...]:
    """Entries on GPUs that the machine does not show."""
    known = {gpu.address for gpu in host.gpus}
    return tuple(
        _difference(
            reconcile.Kind.GPU_GONE, entry.gpu, entry.handle,
            f'handle {entry.handle} ({entry.profile}) is bound on GPU '
            f'{entry.gpu}, which this machine does not show',
            'check what happened to the GPU; delete the server if the GPU '
            'does not come back')
        for entry in entries if entry.gpu not in known)


def earlier(found: Iterable[reconcile.Earlier]
            ) -> tuple[reconcile.Difference, ...]:
    """GPUs that servers have through Cyborg's own driver."""
    return tuple(
        _difference(
            reconcile.Kind.EARLIER_DRIVER, item.gpu, item.provider,
            f'server {", ".join(item.servers)} has provider '
            f"{item.provider} of Cyborg's own driver; Cyborg's record of "
            'the GPU is kept, and this driver does not offer the GPU',
            'delete the server, or shelve it; the next report then takes '
            'over the GPU')
        for item in found)


def unusable(gpu: model.PciAddress, reason: str, remedy: str
             ) -> reconcile.Difference:
    """The difference of an unusable record, which cannot be compared."""
    return _difference(reconcile.Kind.BAD_RECORD, gpu, str(gpu), reason,
                       remedy)


def unrequested(facts: Facts) -> tuple[journal.Entry, ...]:
    """Entries of bound handles for which Cyborg has no request."""
    if facts.claims is None:
        return ()
    return tuple(entry for entry in facts.entries
                 if entry.phase is journal.Phase.BOUND
                 and facts.claims.of(entry.handle) is None)


def unexplained(facts: Facts) -> tuple[model.GpuInstance, ...]:
    """Instances that the GPU's record does not explain."""
    known = facts.record.owned_instances
    return tuple(instance for instance in _instances(facts.gpu)
                 if spec.of(instance) not in known)


def vgpu_name(entry: journal.Entry) -> str:
    """The name of an entry's vGPU: its function, or the mdev's UUID."""
    return str(entry.function) if entry.vfio else entry.handle


def claimed_vgpu(gpu: model.Gpu, claim: reconcile.Claim) -> model.Vgpu | None:
    """The live vGPU of a request on a GPU; None if it does not exist."""
    vfio = gpu.framework is model.Framework.VENDOR_VFIO
    name = str(claim.function) if vfio else claim.handle
    return next((vgpu for vgpu in gpu.vgpus if vgpu.name == name
                 and vgpu.type_id == claim.type_id), None)


def _layout(facts: Facts) -> Iterator[reconcile.Difference]:
    if facts.record.change is not None:
        yield _difference(
            reconcile.Kind.LAYOUT_CHANGE, facts.gpu.address,
            str(facts.gpu.address),
            f'a change of layout did not finish: {facts.record.change}',
            'run "cyborg-gpu layout restore", which undoes it')


def _of_entry(facts: Facts, entry: journal.Entry
              ) -> Iterator[reconcile.Difference]:
    kind, address = reconcile.Kind, facts.gpu.address
    handle = f'handle {entry.handle} ({entry.profile})'
    if not entry.leads:
        return
    if entry.phase is not journal.Phase.BOUND:
        yield _difference(
            kind.UNFINISHED, address, entry.handle,
            f'{handle} was {entry.phase.value} and still has a part of the '
            'GPU', 'each report of the agent tries again; a virtual machine '
            'that still uses it must end first', True)
        return
    claims = facts.claims
    if claims is not None and claims.of(entry.handle) is None:
        yield _no_request(facts, claims, entry, handle)
        return
    if entry.members:
        return
    there = {vgpu.name: vgpu for vgpu in facts.gpu.vgpus}
    vgpu = there.get(vgpu_name(entry))
    lost, free = _instance(facts, entry)
    again = claims is not None and (not lost or free)
    if vgpu is None:
        yield _difference(
            kind.VGPU_GONE, address, entry.handle,
            f'{handle} no longer has a vGPU on {entry.function}'
            + (f', and {lost}' if lost else ''),
            _REPAIR if again else _RESTORE, again)
    elif vgpu.type_id != entry.mdev_type:
        yield _difference(
            kind.OTHER_TYPE, address, entry.handle,
            f'{handle} was bound as {entry.mdev_type}; its vGPU on '
            f'{vgpu.function} is a {vgpu.type_id}',
            'stop the server and delete it; then remove the vGPU with '
            f'"cyborg-gpu vgpu clean {vgpu.name}"')
    elif lost:
        yield _difference(
            kind.INSTANCE_GONE, address, entry.handle,
            f'{handle} has its vGPU, but {lost}',
            _REPAIR if again else _RESTORE, again)


def _no_request(facts: Facts, claims: reconcile.Claims, entry: journal.Entry,
                handle: str) -> reconcile.Difference:
    user = facts.users.get(vgpu_name(entry), '')
    unsettled = claims.unsettled
    reason = (f'in use: {user}' if user else
              'Cyborg is binding or unbinding requests ('
              + ', '.join(unsettled) + ')' if unsettled else '')
    return _difference(
        reconcile.Kind.NO_REQUEST, facts.gpu.address, entry.handle,
        f'{handle} is bound, but Cyborg has no accelerator request for it'
        + (f'; {reason}' if reason else ''),
        'find out what uses it: nothing in use is removed' if user else
        'wait until no request of this host is in progress; delete a request '
        'that does not end' if unsettled else
        'it is returned after [gpu] orphan_grace; ' + _REPAIR + ' now',
        not reason)


def _instance(facts: Facts, entry: journal.Entry) -> tuple[str, bool]:
    """The problem of an entry's instance, and whether its place is free."""
    if entry.placement is None or not facts.gpu.visible_to_nvml:
        return '', True
    free = True
    for instance in _instances(facts.gpu):
        # A restore that died has not written the id of the instance.
        if entry.made(instance, facts.boot):
            return '', True
        if instance.placement.mask & entry.placement.mask:
            free = False
    return (f'its GPU instance at {entry.placement} is gone'
            + ('' if free else ' and another is in its place'), free)


def _instances(gpu: model.Gpu) -> tuple[model.GpuInstance, ...]:
    return gpu.mig.instances if gpu.mig else ()


def _claims(facts: Facts) -> list[reconcile.Claim]:
    """Requests for vGPUs of this GPU that the journal does not know."""
    if facts.claims is None:
        return []
    functions = {facts.gpu.address, *(vf.address for vf in facts.gpu.vfs)}
    known = {entry.handle for entry in facts.entries}
    return [claim for claim in facts.claims.bound
            if claim.function in functions and claim.handle not in known]


def _not_recorded(facts: Facts) -> Iterator[reconcile.Difference]:
    for claim in _claims(facts):
        there = claimed_vgpu(facts.gpu, claim) is not None
        yield _difference(
            reconcile.Kind.NOT_RECORDED, facts.gpu.address, claim.handle,
            f'accelerator request {claim.arq} (server {claim.server}) has '
            f'handle {claim.handle}, which is not in the journal of binds'
            + ('' if there else ', and there is no such vGPU'),
            _REPAIR if there else _PASSING, there)


def _foreign_vgpus(facts: Facts) -> Iterator[reconcile.Difference]:
    known = {vgpu_name(entry) for entry in facts.entries}
    known |= {str(function) for function in facts.record.fixed.types}
    found = [claimed_vgpu(facts.gpu, claim) for claim in _claims(facts)]
    known |= {vgpu.name for vgpu in found if vgpu is not None}
    for vgpu in facts.gpu.vgpus:
        if vgpu.name not in known:
            yield _difference(
                reconcile.Kind.FOREIGN_VGPU, facts.gpu.address, vgpu.name,
                f'unknown vGPU {vgpu.name} ({vgpu.type_id}) on '
                f'{vgpu.function}: neither a bind nor a policy has created '
                'it; it counts as used',
                f'if it is not needed, "cyborg-gpu vgpu clean {vgpu.name}" '
                'removes it')


def _foreign_instances(facts: Facts) -> Iterator[reconcile.Difference]:
    mig = facts.gpu.mig
    if facts.in_use is None or mig is None:
        return
    for instance in unexplained(facts):
        if instance.placement in facts.in_use:
            continue
        name = spec.profile_name(mig, instance.profile_id)
        yield _difference(
            reconcile.Kind.FOREIGN_INSTANCE, facts.gpu.address,
            f'{name}@{instance.placement.start}',
            f'unknown GPU instance {instance.instance_id} ({name} at '
            f'{instance.placement}): neither a bind nor a layout has created '
            'it; it counts as used',
            '"cyborg-gpu instance destroy" removes it; "cyborg-gpu layout '
            'checkpoint" records it as intended')


def _of_placement(facts: Facts) -> Iterator[reconcile.Difference]:
    kind, address = reconcile.Kind, facts.gpu.address
    lost, unrecorded = unrequested(facts), _claims(facts)
    for usage in facts.usages or ():
        bound = sum(entry.profile == usage.profile and entry.leads
                    for entry in facts.entries
                    if entry.phase is journal.Phase.BOUND
                    and entry not in lost)
        bound += sum(claim.type_id == usage.type_id for claim in unrecorded)
        where = f'provider {usage.name or usage.provider} ({usage.profile})'
        text = f'{where}: {usage.used} allocated in Placement, {bound} bound'
        if usage.used > bound:
            yield _difference(kind.ALLOCATED, address, usage.provider, text,
                              _PASSING + '; "nova-manage placement audit" '
                              'finds allocations without a server')
        elif usage.used < bound:
            yield _difference(kind.NOT_ALLOCATED, address, usage.provider,
                              text, _PASSING + '; if the server is gone, '
                              '"openstack gpu orphan clean" removes what '
                              'Cyborg still has bound for it; until then '
                              'Placement may offer what is in use')
        # ``wanted`` counts only the claims in the journal.
        if usage.reserved != usage.wanted and not unrecorded:
            yield _difference(
                kind.RESERVED, address, usage.provider,
                f'{where}: reserved is {usage.reserved} in Placement and '
                f'should be {usage.wanted}',
                "the agent's next report corrects it", True)


def _difference(kind: reconcile.Kind, gpu: model.PciAddress, subject: str,
                text: str, remedy: str, safe: bool = False
                ) -> reconcile.Difference:
    return reconcile.Difference(kind, gpu, subject, text, remedy, safe)
