# SPDX-License-Identifier: Apache-2.0

"""The audit log: which GPU or part was given to whom, returned and cleaned.

Each line is a JSON object. It is appended and written to the disk before the
caller continues. The log tells people what happened. The driver never decides
anything by it, so a record that cannot be written blocks no operation.
"""

from __future__ import annotations

import json
import os
from logging import handlers
from typing import Any

from oslo_log import log as logging
from oslo_utils import timeutils

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import gpu as gpu_record

LOG = logging.getLogger(__name__)

_NAME = 'audit.jsonl'
_FILE_SIZE = 1 << 20
_FILES = 64
"""How many files of that size are kept, including the one being written:
enough for about 70,000 partitions from bind to unbind."""


class Audit:
    """Writes records below a directory."""

    def __init__(self, state_path: str):
        self._state_path = state_path
        self._path = os.path.join(state_path, _NAME)
        self._said = log_once.LogOnce()

    def record(self, gpu: model.PciAddress, what: str, subject: str,
               evidence: dict[str, Any]) -> None:
        """Append one record. Never raises.

        If records cannot be written, that is logged once, until a write
        succeeds again.

        :param evidence: values that JSON can represent.
        """
        line = json.dumps({
            'time': timeutils.utcnow(with_timezone=True).isoformat(),
            'gpu': str(gpu), 'what': what, 'subject': subject,
            'evidence': evidence}, sort_keys=True).encode() + b'\n'
        with (self._said.noted(
                LOG.error, 'Cannot write the audit record. Until this works '
                'again, changes of GPUs are not recorded'),
              locks.audit(self._state_path)):
            if _append(self._path, line) >= _FILE_SIZE:
                handlers.RotatingFileHandler(
                    self._path, backupCount=_FILES - 1, delay=True
                ).doRollover()


def of_claim(claim: gpu_record.Claim) -> dict[str, Any]:
    """The evidence of a bind or unbind: the partition and its place."""
    return {
        'profile': claim.profile, 'type': claim.mdev_type,
        'function': str(claim.function),
        **({'gpus': list(map(str, claim.members))} if claim.members else {}),
        **({'fabric_partition': claim.fabric_partition}
           if claim.fabric_partition is not None else {}),
        'placement': claim.placement and str(claim.placement),
        'gpu_instance_id': claim.instance_id,
        'vgpu_placement': claim.vgpu_placement,
        **({'since': claim.since} if claim.since is not None else {}),
        **({'until': claim.until} if claim.until is not None else {})}


def _append(path: str, line: bytes) -> int:
    """Append a line, and end an incomplete line before it.

    Otherwise the rest of a line that a crash cut short would spoil it.
    """
    durable.make_file(path)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b'\n':
            line = b'\n' + line
        while line:
            line = line[os.write(descriptor, line):]
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
