# SPDX-License-Identifier: Apache-2.0

"""Arbitrary data from a ramdisk, and arbitrary arguments of a step."""


import hypothesis
from hypothesis import strategies

from cyborg_gpu_driver.baremetal import node
from cyborg_gpu_driver.tests.unit.baremetal import inspected
from cyborg_gpu_driver.tests.unit.fuzz import base
from cyborg_gpu_driver.tests.unit.fuzz import checks

ITEM = {'devices': [0, 1], 'device-filter': ['0x20B210DE'],
        'mig-enabled': True, 'mig-devices': {'1g.10gb': 2, '3g.40gb': 1}}


class InventoryTest(base.FuzzCase):

    def setUp(self):
        super().setUp()
        host = inspected.snapshot('mixed')
        self.gpus = host.gpus
        self.good = inspected.sent(host, {1: ['XID_79']})

    def test_parse(self):
        @base.examples(250)
        @hypothesis.given(base.mutated(self.good))
        def holds(value):
            checks.ramdisk(value)

        holds()

    def test_layout_of_a_step(self):
        @base.examples(250)
        @hypothesis.given(strategies.one_of(
            base.mutated([ITEM]), base.mutated({'name': [ITEM]}),
            base.PLAIN))
        def holds(value):
            entry = self.attempt(node.entry_of, value, self.gpus)
            if entry is not None:
                node.suits(self.gpus, entry)

        holds()
