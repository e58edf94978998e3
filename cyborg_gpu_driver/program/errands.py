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
"""What is to be done about single GPUs, by threads that nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from oslo_log import log as logging

from cyborg_gpu_driver.host import model

LOG = logging.getLogger(__name__)


class Errands:
    """Does one thing about each GPU that is named, as soon as that can be.

    A GPU whose lock is held delays no other: each has a thread of its own,
    which ends when nothing is left to do. Naming a GPU that waits its turn
    adds nothing; what is done then is by the newest state.

    :param act: called with a GPU's address; what it raises is logged.
    """

    def __init__(self, act: Callable[[model.PciAddress], object]):
        self._act = act
        self._mutex = threading.Lock()
        self._wanted: set[model.PciAddress] = set()
        self._busy: set[model.PciAddress] = set()

    def ask(self, address: model.PciAddress) -> None:
        """Have it done for a GPU, and return at once."""
        with self._mutex:
            self._wanted.add(address)
            if address in self._busy:
                return
            self._busy.add(address)
        threading.Thread(target=self._run, args=(address,), daemon=True,
                         name=f'cyborg-gpu-errand {address}').start()

    def _run(self, address):
        while self._is_wanted(address):
            try:
                self._act(address)
            except Exception:
                LOG.exception('GPU %s: what an error of it asks for was not '
                              'done', address)

    def _is_wanted(self, address):
        with self._mutex:
            if address in self._wanted:
                self._wanted.discard(address)
                return True
            self._busy.discard(address)
            return False
