# SPDX-License-Identifier: Apache-2.0


from oslotest import base

from cyborg_gpu_driver.cloud import quota
from cyborg_gpu_driver.cloud import resources

_SLICE = 'CUSTOM_NVIDIA_1G_10GB'
_DEFAULT = resources.RegisteredLimit(f'class:{_SLICE}', 2)
_OWN = resources.Limit(f'class:{_SLICE}', 'p', 8)


def _there(*items):
    return [resources.Existing(item, item.name) for item in items]


class ShowTest(base.BaseTestCase):

    def quotas(self, limits, usages, project='p'):
        return [(one.resource_class, one.limit, one.own, one.used, one.free)
                for one in quota.of_project(project, _there(*limits), usages)]

    def test_own_limit_is_before_default(self):
        self.assertEqual([(_SLICE, 8, True, 3, 5)],
                         self.quotas([_DEFAULT, _OWN], {_SLICE: 3}))
        self.assertEqual([(_SLICE, 2, False, 3, 0)], self.quotas(
            [_DEFAULT, _OWN], {_SLICE: 3}, project='other'))
