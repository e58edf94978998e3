# SPDX-License-Identifier: Apache-2.0

"""What accelerator requests hold on a host, and what they do not show."""


import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.tests.unit.cloud import keystone
from cyborg_gpu_driver.tests.unit.cloud import services

_HANDLE = 'c5b0a1d2-34f6-4c7e-9b8a-001122334455'
_FUNCTION = model.PciAddress.parse('0000:3b:00.4')


def _request(uuid='arq', **changes):
    """A bound accelerator request as Cyborg's API shows it."""
    return {
        'uuid': uuid, 'instance_uuid': 'server', 'hostname': 'here',
        'state': 'Bound', 'attach_handle_type': 'MDEV',
        'attach_handle_uuid': _HANDLE.upper(), 'attach_handle_info': {
            'domain': '0000', 'bus': '3b', 'device': '00', 'function': '4',
            'asked_type': 'nvidia-474'}, **changes}


def _without_handle(state, **changes):
    return _request(state=state, attach_handle_uuid=None,
                    attach_handle_type='', attach_handle_info={}, **changes)


_CLAIM = reconcile.Request(_HANDLE, 'arq', 'server', _FUNCTION, 'nvidia-474')


class ClaimsTest(base.BaseTestCase):

    def test_a_bound_one(self):
        claims = cyborg.claims([_request()], 'here')
        self.assertEqual(reconcile.Requests((_CLAIM,)), claims)
        self.assertEqual(_CLAIM, claims.of(_HANDLE))
        self.assertIsNone(claims.of('other'))

    def test_what_says_nothing_of_this_host(self):
        for request in (_request(hostname='there'),
                        _request(attach_handle_type='PCI'),
                        _without_handle('Initial', hostname=None),
                        _without_handle('BindStarted', hostname='there')):
            self.assertEqual(reconcile.Requests(),
                             cyborg.claims([request], 'here'))

    def test_what_may_have_a_handle_that_is_not_shown(self):
        for state, hostname in (
                ('BindStarted', 'here'), ('BindFailed', 'here'),
                ('UnbindFailed', None), ('Unbound', None),
                ('Deleting', 'here')):
            self.assertEqual(
                reconcile.Requests((), ('arq',)), cyborg.claims(
                    [_without_handle(state, hostname=hostname)], 'here'))


class ByVgpuTest(base.BaseTestCase):

    def test_the_vgpus_that_requests_have(self):
        here, there = _request(), _request(hostname='there')
        self.assertEqual({_HANDLE: here, str(_FUNCTION): here},
                         cyborg.by_vgpu([here], 'here'))
        self.assertEqual({_HANDLE: there}, cyborg.by_vgpu([there], 'here'))
        self.assertEqual({}, cyborg.by_vgpu(
            [_without_handle('Initial', hostname=None)], 'here'))


class WatchTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.requests = [_request()]
        self.keystone = self.useFixture(keystone.KeystoneFixture(
            services.documents({
                '/v2/devices': lambda query: {
                    'devices': [{}] if query == 'hostname=here' else []},
                '/v2/accelerator_requests': lambda _: {
                    'arqs': self.requests}})))
        keystone.forget_clouds(self)
        self.conf = cfg.ConfigOpts()
        self.keystone.log_in(self.conf)
        self.log = self.useFixture(fixtures.FakeLogger())

    def unknown(self):
        return self.log.output.count('Cannot read the accelerator requests')

    def test_what_is_bound_now(self):
        watch = cyborg.RequestWatch(self.conf, 'here')
        self.assertEqual((_CLAIM,), watch.read().bound)
        self.requests = []
        self.assertEqual((), watch.read().bound)
        self.assertEqual(0, self.unknown())

    def test_a_new_host_has_no_device_yet(self):
        watch = cyborg.RequestWatch(self.conf, 'elsewhere')
        for number in range(3):
            self.assertIsNone(watch.read())
            self.assertEqual(min(number, 1), self.unknown())
