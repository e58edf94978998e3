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


"""The record of earlier reports, damaged but with a valid checksum."""

import dataclasses

import hypothesis

from cyborg_gpu_driver import durable
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import capacity
from cyborg_gpu_driver.report import withdrawal
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.tests.unit.fuzz import base
from cyborg_gpu_driver.tests.unit.report import placements

_ADDRESS = model.PciAddress.parse('0000:07:00.0')
_GPU = model.Gpu(
    address=_ADDRESS, vendor_id='10de', device_id='20b2', class_code='0302',
    model='NVIDIA A100-SXM4-80GB', uuid='GPU-1', memory_mib=81920,
    driver='nvidia', visible_to_nvml=True)
_HIDDEN = dataclasses.replace(_GPU, model=None, uuid=None, memory_mib=None)
_ONE = {'device_id': '20b2', 'mode': 'mig',
        'facts': {'model': 'A100', 'uuid': 'GPU-1', 'memory_mib': 81920},
        'providers': {'7f3b1c0e-5b6a-4d0f-9a53-0d4d8e1f2a3b': {
            'resource_class': 'CUSTOM_NVIDIA_1G_10GB', 'total': 2,
            'handles': 'abc'}}}


def _device(gpu):
    parents = (model.PciAddress.parse('0000:07:00.4'),)
    return build.device(gpu, [offers.Offer(
        gpu.address, 'p', policy.Mode.MIG, '1g.10gb', 2,
        vgpu_type_id='nvidia-1', parents=parents)], 'host')


class ReportTest(base.FuzzCase):

    @base.examples(250)
    @hypothesis.given(base.mutated(_ONE))
    def test_reported(self, content):
        path = store.Store(self.state_path).path(_ADDRESS)
        durable.write(path, store.KIND, store.VERSION, {'reported': content})
        self.assertIsInstance(
            capacity.of_reports(self.state_path, _ADDRESS), str)
        # Without Placement, everything counts as in use.
        for used in (set(), None):
            keeper = withdrawal.Withdrawal(
                self.state_path, placements.Usages(used).keeper())
            keeper.held()
            for gpus in ((_HIDDEN,), (), (_GPU,)):
                decided = keeper.decide(
                    model.Host(gpus=gpus), _device, (), (),
                    (_ADDRESS,))
                for inventory in decided.draining:
                    self.assertIs(int, type(inventory.total))
