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


"""RPC arguments are served or refused, and none leads out of the tree."""

import logging
import os

import hypothesis
from cyborg.accelerator.drivers.gpu import utils
from cyborg.conf import CONF
from hypothesis import strategies
from oslo_config import fixture as config_fixture

from cyborg_gpu_driver import cyborg_hooks
from cyborg_gpu_driver import driver
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.fuzz import base

_HANDLE = '7f3b1c0e-5b6a-4d0f-9a53-0d4d8e1f2a3b'
_VALUES = strategies.one_of(
    base.PLAIN, strategies.binary(max_size=20), strategies.from_regex(
        vgpu_name._UUID, fullmatch=True))
_ADDRESSES = strategies.one_of(_VALUES, strategies.sampled_from((
    '0000:07:00.0', '0000:07:00.4', '0000:07:00.5', '0000:0f:00.4',
    '00000000:07:00.4', '0000:07:00.4/..', '0000:07:00.4\n')))
_TYPES = strategies.one_of(_VALUES, strategies.sampled_from((
    'nvidia-463', 'nvidia-464', 'nvidia-1', 'nvidia-999999999', '../../x')))
_HANDLES = strategies.one_of(_VALUES, strategies.sampled_from((
    _HANDLE, _HANDLE.upper(), '{' + _HANDLE + '}', '../' + _HANDLE[3:])))
_ARGUMENTS = strategies.tuples(_ADDRESSES, _TYPES, _HANDLES)


class RequestTest(base.FuzzCase):

    @base.examples(300)
    @hypothesis.given(_ARGUMENTS)
    @hypothesis.example(('0000:07:00.4', 'nvidia-463', _HANDLE + '/..'))
    @hypothesis.example(('0000:07:00.4', 'nvidia-463/..', _HANDLE))
    @hypothesis.example(('0000:07:00.4/..', 'nvidia-463', _HANDLE))
    def test_parse(self, arguments):
        try:
            asked = plan.parse_request(*arguments)
        except exception.InvalidValue:
            return
        for value in (str(asked.function), asked.mdev_type, asked.handle):
            self.assertRegex(value, '^[a-z0-9:.-]+$')
            self.assertNotIn('..', value)


class DriverTest(base.FuzzCase):
    """Arguments as Cyborg's agent passes them to the functions it calls."""

    def setUp(self):
        super().setUp()
        guard = simulator.Machine.load('dgx-a100-40').install()
        self.addCleanup(guard.uninstall)
        self.addCleanup(setattr, privileged, '_platform', None)
        self.addCleanup(cyborg_hooks.remove)
        gpu_conf.register_opts(CONF)
        conf = self.useFixture(config_fixture.Config(CONF))
        conf.config(group='gpu', simulate='dgx-a100-40', simulate_state=None,
                    state_path=self.state_path, health_events=False)
        conf.config(group='placement', auth_type='none')
        driver.GPUDriver()
        self.crashes = _Crashes()
        logging.disable(logging.WARNING)
        logger = logging.getLogger(driver.__name__)
        logger.addHandler(self.crashes)
        self.addCleanup(setattr, logger, 'propagate', logger.propagate)
        logger.propagate = False
        self.addCleanup(logger.removeHandler, self.crashes)

    @base.examples(150)
    @hypothesis.given(strategies.lists(strategies.tuples(
        strategies.booleans(), _ARGUMENTS), min_size=1, max_size=4))
    def test_through_the_seam(self, calls):
        for binds, arguments in calls:
            if binds:
                self.attempt(utils.create_mdev_privileged, *arguments)
            else:
                utils.remove_mdev_privileged(*arguments)
        self.assertEqual([], self.crashes.found)
        self.assertEqual([], [name for name in os.listdir(self.state_path)
                              if name.startswith('.')])


class _Crashes(logging.Handler):
    """A log handler that keeps the errors not defined by this library."""

    def __init__(self):
        super().__init__()
        self.found = []

    def emit(self, record):
        if record.exc_info:
            self.found.append(self.format(record))
