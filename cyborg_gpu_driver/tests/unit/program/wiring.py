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

"""The parts that change GPUs, put together as a node does it."""

from __future__ import annotations

from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import partitions
from cyborg_gpu_driver.program.ready import fixed
from cyborg_gpu_driver.program.ready import prepare
from cyborg_gpu_driver.program.ready import restore
from cyborg_gpu_driver.program.steps import transaction


def preparer(machine, state_path, settings, cloud):
    return prepare.Preparer(
        reader.HostReader(machine),
        transaction.Transactions(machine, state_path), settings,
        health.HealthKeeper(machine, state_path, cloud), cloud)


def restorer(machine, state_path, settings=None, cloud=None):
    settings = settings or policies.Settings()
    transactions = transaction.Transactions(machine, state_path)
    host_reader = reader.HostReader(machine)
    return restore.Restorer(
        host_reader, transactions,
        partitions.Partitions(machine, transactions.records),
        fixed.FixedVgpus(host_reader, transactions, settings), settings,
        cloud or services.Services())
