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

"""Binds of many threads, on the kind of threads that cyborg-agent has.

usage: python -c START green.py FILE

START is what imports ``cyborg.cmd`` first, as all commands of Cyborg do. Not a
module of its package, which settles on threads of its own. FILE is
cyborg.conf. Prints one JSON object: what the threads met. Other services are
in other processes, as they would be: SQLite holds up all of eventlet's
threads when one of them has to wait.
"""

import concurrent.futures
import json
import sys
import threading
import time
import uuid

from cyborg.accelerator.drivers.gpu import utils
from cyborg.common import service
from oslo_utils import importutils

from cyborg_gpu_driver import driver


def main(path: str) -> dict:
    """Bind all handles at once while the agent reports, then unbind all."""
    service.prepare_service(['cyborg-agent', '--config-file', path])
    said = {'green': _is_green(), 'errors': []}
    ours = driver.GPUDriver()
    (device,) = ours.discover()
    (deployable,) = device.deployable_list
    asked = [_arguments(handle) for handle
             in deployable.attach_handle_list]
    ticker = _Ticker()
    said['bound'] = _at_once(
        said, [lambda one=one: utils.create_mdev_privileged(*one)
               for one in asked], ours)
    said['unbound'] = _at_once(
        said, [lambda one=one: utils.remove_mdev_privileged(*one)
               for one in asked], ours)
    said['turns'] = ticker.stop()
    ours._running().stop()
    return said


def _arguments(handle):
    """What the agent passes on: address, type, a UUID for the handle."""
    info = json.loads(handle.attach_info)
    return ('{domain}:{bus}:{device}.{function}'.format(**info),
            info['asked_type'], str(uuid.uuid4()))


def _at_once(said, acts, ours):
    """Do all, each in a thread, beside a report; what is on the GPU then."""
    with concurrent.futures.ThreadPoolExecutor(len(acts) + 1) as pool:
        for future in [pool.submit(act) for act in (*acts, ours.discover)]:
            try:
                future.result()
            except Exception as error:
                said['errors'].append(repr(error))
    return len(ours._running()._journal.entries())


def _is_green():
    patcher = importutils.try_import('eventlet.patcher')
    return patcher is not None and patcher.is_monkey_patched('thread')


class _Ticker:
    """Another thread of the agent: it must get its turn."""

    def __init__(self):
        self._count = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        """How often it had its turn."""
        self._stopping = True
        self._thread.join()
        return self._count

    def _run(self):
        while not self._stopping:
            time.sleep(0.01)
            self._count += 1


if __name__ == '__main__':
    print(json.dumps(main(sys.argv[-1])))
