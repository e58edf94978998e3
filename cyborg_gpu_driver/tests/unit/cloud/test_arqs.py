# SPDX-License-Identifier: Apache-2.0

"""The vGPUs that accelerator requests have."""

import uuid

from oslotest import base

from cyborg_gpu_driver.cloud import cyborg

_HANDLE = 'c5b0a1d2-34f6-4c7e-9b8a-001122334455'


def _request(**changes):
    return {
        'uuid': str(uuid.uuid4()), 'instance_uuid': 'server',
        'hostname': 'here', 'attach_handle_uuid': _HANDLE,
        'attach_handle_info': {
            'domain': '0000', 'bus': '3B', 'device': '00', 'function': '4',
            'asked_type': 'nvidia-474'}, **changes}


class ByVgpuTest(base.BaseTestCase):

    def test_by_handle_and_by_function(self):
        request = _request(attach_handle_uuid=_HANDLE.upper())
        self.assertEqual({_HANDLE: request, '0000:3b:00.4': request},
                         cyborg.by_vgpu([request], 'here'))

    def test_a_function_of_another_host_is_not_ours(self):
        self.assertEqual({_HANDLE}, set(cyborg.by_vgpu(
            [_request(hostname='there')], 'here')))

    def test_what_is_not_bound_has_nothing(self):
        self.assertEqual({}, cyborg.by_vgpu(
            [_request(attach_handle_uuid=None, attach_handle_info=None,
                      instance_uuid=None, hostname=None)], 'here'))
