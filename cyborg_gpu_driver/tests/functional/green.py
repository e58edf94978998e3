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

"""Binds in many threads, of the kind of threads that cyborg-agent has.

usage: python -c START green.py FILE

START is code that imports ``cyborg.cmd`` first, as all commands of Cyborg do,
and then runs this file. The file does not run as a module of its package,
because the package chooses a kind of threads itself. FILE is cyborg.conf. The
program prints one JSON object with what happened in the threads. The other
services run in other processes, as in a deployment: SQLite blocks all of
eventlet's threads when one of them has to wait.
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
    """Return what the agent passes: address, type, UUID for the handle."""
    info = json.loads(handle.attach_info)
    return ('{domain}:{bus}:{device}.{function}'.format(**info),
            info['asked_type'], str(uuid.uuid4()))


def _at_once(said, acts, ours):
    """Run all acts and a report in threads; return the number of claims."""
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
    """Another thread of the agent, which must get its turn."""

    def __init__(self):
        self._count = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        """Stop the thread; return how often it had its turn."""
        self._stopping = True
        self._thread.join()
        return self._count

    def _run(self):
        while not self._stopping:
            time.sleep(0.01)
            self._count += 1


if __name__ == '__main__':
    print(json.dumps(main(sys.argv[-1])))
