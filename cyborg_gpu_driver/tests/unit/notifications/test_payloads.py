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


import pathlib

from oslo_versionedobjects import base as object_base
from oslo_versionedobjects import fixture
from oslotest import base

from cyborg_gpu_driver.notifications import payloads
from cyborg_gpu_driver.notifications import sender

_PAGE = (pathlib.Path(__file__).resolve().parents[4]
         / 'doc/source/admin/notifications.rst')
_ALL = (payloads.BindErrorPayload, payloads.CordonPayload,
        payloads.DifferencePayload, payloads.HealthPayload)
# A changed digest means a changed payload: raise its version.
_DIGESTS = {
    'BindErrorPayload': '1.0-6ebda3e81b49a5415463029fde47d894',
    'CordonPayload': '1.1-81121911d0136db186a1bab16046f3d4',
    'DifferencePayload': '1.0-679e2d40d4103078f150eda8b271ed9e',
    'HealthPayload': '1.0-eb38313c87336f72d700af855f57bccc'}


class VersionTest(base.BaseTestCase):

    def test_a_changed_payload_has_another_version(self):
        checker = fixture.ObjectVersionChecker(
            {one.obj_name(): [one] for one in _ALL})
        expected, actual = checker.test_hashes(_DIGESTS)
        self.assertEqual(expected, actual)

    def test_all_payloads_are_compared(self):
        found = {value for value in vars(payloads).values()
                 if isinstance(value, type)
                 and issubclass(value, object_base.VersionedObject)
                 and not value.__name__.startswith('_')}
        self.assertEqual({*_ALL}, found)

    def test_each_has_host_and_gpu(self):
        for one in _ALL:
            self.assertLessEqual({'host', 'gpu'}, one.fields.keys())

    def test_all_is_documented(self):
        page = _PAGE.read_text(encoding='utf-8')
        for name in {name for one in _ALL for name in one.fields}:
            self.assertIn(f'``{name}``', page)
        for event in sender.Event:
            self.assertRegex(page, rf'``{event.value[0]}`` +{event.value[1]} ')
