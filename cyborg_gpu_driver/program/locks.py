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

"""Locks across threads and processes, one a GPU."""

import contextlib
import os

from oslo_concurrency import lockutils

from cyborg_gpu_driver.host import model


def gpu(state_path: str, address: model.PciAddress
        ) -> contextlib.AbstractContextManager:
    """Hold one GPU: whoever changes its partition or speaks of it does.

    :param state_path: ``[gpu] state_path``; the files lie below ``locks``.
    """
    return _lock(state_path, f'gpu-{address}')


def journal(state_path: str) -> contextlib.AbstractContextManager:
    """Hold the journal for one read and write of it."""
    return _lock(state_path, 'journal')


def checkpoint(state_path: str) -> contextlib.AbstractContextManager:
    """Hold the checkpoint for one read and write of it."""
    return _lock(state_path, 'checkpoint')


def _lock(state_path, name):
    return lockutils.lock(f'cyborg-gpu-{name}', external=True,
                          lock_path=os.path.join(state_path, 'locks'))
