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

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import functions
from cyborg_gpu_driver.tests.unit.partition import boards

CLAIMS = st.lists(st.builds(functions.Claim, st.integers(0, 20),
                            st.booleans()), max_size=8)


def claims_for(count, claims):
    return [functions.Claim(min(claim.total, count), claim.excludes_others)
            for claim in claims]


class TestAssign(base.BaseTestCase):

    def numbers(self, count, *claims):
        vfs = boards.vfs(count)
        index = {function.address: function.index for function in vfs}
        return [[index[address] for address in given] for given in
                functions.assign(vfs, claims)]

    def test_distinct_while_there_are_enough(self):
        self.assertEqual([[0, 1, 2], [5], [3, 4]], self.numbers(
            6, functions.Claim(3), functions.Claim(1, True),
            functions.Claim(2)))

    def test_who_excludes_all_others_shares_first(self):
        self.assertEqual([[0], [0, 1, 2], [3, 4]], self.numbers(
            5, functions.Claim(1, True), functions.Claim(3),
            functions.Claim(2)))

    def test_then_round_again(self):
        self.assertEqual([[0, 1, 2], [3, 0, 1], [2], [0, 1]], self.numbers(
            4, functions.Claim(3), functions.Claim(3), functions.Claim(1),
            functions.Claim(2, True)))

    def test_no_functions(self):
        self.assertEqual(((), ()), functions.assign(
            (), [functions.Claim(3), functions.Claim(1, True)]))

    def test_order_of_the_functions_does_not_matter(self):
        vfs = boards.vfs(12)
        claims = [functions.Claim(7), functions.Claim(3)]
        self.assertEqual(functions.assign(vfs, claims),
                         functions.assign(vfs[::-1], claims))

    def test_what_is_in_use_does_not_matter(self):
        vfs = boards.vfs(8)
        claims = [functions.Claim(5), functions.Claim(5)]
        used = [model.VirtualFunction(
            function.address, function.index, 'nvidia', 7,
            mdevs=(model.Mdev('u', function.address, 'nvidia-1'),))
            for function in vfs[:4]] + list(vfs[4:])
        self.assertEqual(functions.assign(vfs, claims),
                         functions.assign(used, claims))

    @hypothesis.given(st.integers(1, 20), CLAIMS)
    def test_each_claim_has_its_number_all_different(self, count, claims):
        claims = claims_for(count, claims)
        given = functions.assign(boards.vfs(count), claims)
        for claim, addresses in zip(claims, given, strict=True):
            self.assertEqual(claim.total, len(addresses))
            self.assertEqual(claim.total, len(set(addresses)))

    @hypothesis.given(st.integers(1, 20), CLAIMS)
    def test_nothing_is_shared_without_need(self, count, claims):
        claims = claims_for(count, claims)
        given = functions.assign(boards.vfs(count), claims)
        together = [addresses for claim, addresses in
                    zip(claims, given, strict=True)
                    if not claim.excludes_others]
        for group in (given, together):
            named = [address for addresses in group
                     for address in addresses]
            if len(named) <= count:
                self.assertEqual(len(named), len(set(named)))
