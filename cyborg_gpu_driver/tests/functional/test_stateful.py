# SPDX-License-Identifier: Apache-2.0

"""Operations in any order lose nothing and give no server another's vGPU.

``CYBORG_GPU_OPERATIONS`` says how many operations the test tries, half of
them on a host with mdev and half on a host without. If it is not set, the
test tries a few operations that are always the same. ``CYBORG_GPU_SEED`` is
the number that a run has printed, to try the same operations again. With
``CYBORG_GPU_SHRINK`` the test looks for as few operations as still fail,
which takes long.
"""

import collections
import logging
import math
import os
import random

import hypothesis
import testscenarios
from hypothesis import stateful

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import stateful_kinds
from cyborg_gpu_driver.tests.functional import stateful_machine
from cyborg_gpu_driver.tests.functional import stateful_world

load_tests = testscenarios.load_tests_apply_scenarios

_OPERATIONS = os.environ.get('CYBORG_GPU_OPERATIONS')
_SEED = os.environ.get('CYBORG_GPU_SEED')
_SHRINK = os.environ.get('CYBORG_GPU_SHRINK')
_STEPS = 200
"""Operations on one host."""
_FEW = 70 if scope.ALL else 20


class AnythingTest(stateful_world.StatefulCase):

    scenarios = scope.first(('mdev', {'kind': stateful_kinds.MDEV}),
                            ('vendor VFIO', {'kind': stateful_kinds.VFIO}))

    def setUp(self):
        super().setUp()
        self.addCleanup(logging.disable, logging.root.manager.disable)
        logging.disable(logging.INFO)

    def test_anything(self):
        done = collections.Counter()
        machine = type('Operations', (stateful_machine.Operations,),
                       {'case': self, 'done': done})
        number = int(_OPERATIONS or _FEW) / 2
        self.seed = int(_SEED or random.getrandbits(32))
        if _OPERATIONS:
            machine = hypothesis.seed(self.seed)(machine)
            print(f'CYBORG_GPU_SEED={self.seed}')
        try:
            stateful.run_state_machine_as_test(
                machine, settings=_settings(number))
        finally:
            tried = _tell(done)
        self.assertGreaterEqual(tried, number)


def _settings(number):
    phases = [hypothesis.Phase.generate]
    if _SHRINK:
        phases.append(hypothesis.Phase.shrink)
    hosts = math.ceil(number / _STEPS)
    return hypothesis.settings(
        # Some operations do nothing and are not counted.
        max_examples=hosts, stateful_step_count=math.ceil(
            1.1 * number / hosts),
        derandomize=not _OPERATIONS, database=None, deadline=None,
        print_blob=True, report_multiple_bugs=False, phases=phases,
        suppress_health_check=list(hypothesis.HealthCheck))


def _tell(done):
    """Print the operations and their outcomes; return their number."""
    kinds = [name for name in sorted(done) if ':' not in name]
    number = sum(done[name] for name in kinds)
    print(f'{number} operations: ' + ', '.join(
        f'{done[name]} {name}' + _outcomes(done, name) for name in kinds))
    return number


def _outcomes(done, kind):
    found = [f'{done[name]} {name.partition(": ")[2]}' for name in
             sorted(done) if name.startswith(f'{kind}: ')]
    return f' ({", ".join(found)})' if found else ''
