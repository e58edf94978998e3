# SPDX-License-Identifier: Apache-2.0

"""The state of Placement, read as seldom as possible."""

import fixtures
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.report import capacity
from cyborg_gpu_driver.report import drift
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests.unit.report import placements

_GPU = model.PciAddress.parse('0000:07:00.0')
_VF = model.PciAddress.parse('0000:07:00.4')


def _offer(profile='1g.5gb', mode=policy.Mode.MIG, creatable=6):
    return offer.Offer(_GPU, 'p', mode, profile, 7, creatable=creatable,
                       vgpu_type_id='nvidia-474', parents=(_VF,))


_UUIDS = {profile: names.provider_uuid(names.provider_name(
    'here', _offer(profile))) for profile in ('1g.5gb', '3g.20gb')}


class DriftTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.placement = placements.Placement()
        for profile, uuid in _UUIDS.items():
            self.placement.tree[uuid] = {names.custom('NVIDIA', profile): {}}
            self.placement.use(uuid)
        self.offers = [_offer(), _offer('3g.20gb')]
        self.owned = {'1g.5gb': 1, '3g.20gb': 1}
        self.withdrawn = set()
        self.drift = self.start()
        self.log = self.useFixture(fixtures.FakeLogger())

    def start(self, with_reserved=True):
        return drift.Drift(self.placement.providers(), 'here', with_reserved)

    def inventories(self):
        return [item for item in capacity.inventories(
            self.offers, self.owned, 'here')
            if item.provider not in self.withdrawn]

    def read(self):
        return self.drift.read({_GPU: self.offers}, {_GPU: self.inventories()})

    def changed(self, profile='1g.5gb', used=1, reserved=0):
        self.placement.use(_UUIDS[profile], used, reserved)

    def usages(self):
        return {item.profile: (item.used, item.reserved, item.wanted)
                for item in self.read()[_GPU]}

    def test_the_generations_that_it_read_are_taken_once(self):
        self.read()
        self.assertEqual(dict.fromkeys(_UUIDS.values(), 1),
                         self.drift.take_generations())
        self.assertEqual({}, self.drift.take_generations())
        self.read()
        self.placement.status = 503
        self.read()
        self.assertEqual({}, self.drift.take_generations())

    def test_what_is_used(self):
        self.assertEqual({'1g.5gb': (1, 0, 0), '3g.20gb': (1, 0, 0)},
                         self.usages())
        self.changed(used=3)
        self.assertEqual((3, 0, 0), self.usages()['1g.5gb'])
        (usage, _) = self.read()[_GPU]
        self.assertEqual((_UUIDS['1g.5gb'], 'nvidia-474'),
                         (usage.provider, usage.type_id))

    def test_one_request_while_nothing_is_used(self):
        self.drift = self.start(with_reserved=False)
        for profile in _UUIDS:
            self.changed(profile, used=0)
        self.read()
        self.placement.asked.clear()
        self.read()
        self.assertEqual({'tree': 1}, dict(self.placement.asked))
        self.changed()
        self.placement.asked.clear()
        self.read()
        self.assertEqual({'tree': 1, 'usages': 1},
                         dict(self.placement.asked))

    def test_the_end_of_an_allocation_changes_no_generation(self):
        self.assertEqual((1, 0, 0), self.usages()['1g.5gb'])
        self.placement.used.clear()
        self.assertEqual((0, 0, 0), self.usages()['1g.5gb'])

    def test_reserved_that_somebody_else_changed(self):
        self.changed(reserved=2)
        self.assertEqual((1, 2, 0), self.usages()['1g.5gb'])
        # The agent writes what is right in each report.
        self.drift = self.start(with_reserved=False)
        self.assertEqual((1, 0, 0), self.usages()['1g.5gb'])

    def test_what_is_to_be_withdrawn_is_left_out(self):
        self.withdrawn.add(_UUIDS['3g.20gb'])
        self.changed('3g.20gb', used=0, reserved=7)
        self.assertEqual({'1g.5gb': (1, 0, 0)}, self.usages())

    def test_what_placement_has_not(self):
        self.placement.gone.add(_UUIDS['1g.5gb'])
        self.assertEqual({'3g.20gb'}, set(self.usages()))
        self.placement.gone.update(_UUIDS.values())
        self.assertEqual({}, self.usages())

    def test_a_whole_gpu_is_left_out(self):
        self.offers.append(_offer('passthrough', policy.Mode.PASSTHROUGH))
        self.placement.use(names.provider_uuid(names.provider_name(
            'here', self.offers[-1])))
        self.assertNotIn('passthrough', self.usages())

    def test_a_placement_that_does_not_answer_is_said_once(self):
        self.read()
        self.placement.status = 503
        self.assertIsNone(self.read())
        self.assertIsNone(self.read())
        self.assertEqual(1, self.log.output.count('cannot be compared'))
        self.placement.status = 200
        self.assertIsNotNone(self.read())
        self.placement.status = 503
        self.assertIsNone(self.read())
        self.assertEqual(2, self.log.output.count('cannot be compared'))
