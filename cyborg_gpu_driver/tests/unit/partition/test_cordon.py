# SPDX-License-Identifier: Apache-2.0

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.record import codec

ONE = cordon.Cordon(cordon.Source.OPERATOR, 1700000000.0, 'root', 'a fan')
TWO = cordon.Cordon(cordon.Source.CYBORG, 1700000001.0, 'ann', 'a move')
PLAIN = cordon.Cordon(cordon.Source.CYBORG, 1700000002.0)


class CordonTest(base.BaseTestCase):

    def test_one_of_each_source(self):
        other = cordon.Cordon(cordon.Source.OPERATOR, 5.0)
        self.assertEqual((ONE, TWO), cordon.added(cordon.added((), TWO), ONE))
        self.assertEqual((other, TWO), cordon.added((ONE, TWO), other))
        self.assertEqual((TWO,), cordon.without((ONE, TWO), cordon.ON_HOST))
        self.assertEqual(TWO, cordon.of((ONE, TWO), cordon.Source.CYBORG))
        self.assertIsNone(cordon.of((ONE,), cordon.Source.HEALTH))

    def test_for_people(self):
        self.assertEqual(
            'cordoned on the host by root since 2023-11-14T22:13:20+00:00: '
            'a fan; disabled in Cyborg', cordon.text(
                (ONE, cordon.Cordon(cordon.Source.CYBORG))))

    def test_what_a_trait_tells(self):
        longest = cordon.Cordon(cordon.Source.CYBORG, 1700000002.0, 'x' * 40,
                                'ä' * 45)
        for one in (TWO, longest):
            name = cordon.trait(one)
            self.assertRegex(name, r'\ACUSTOM_[A-Z0-9_]{1,248}\Z')
            self.assertEqual(one, cordon.of_traits(['CUSTOM_A', name]))
        self.assertEqual(longest, cordon.of_traits(
            [cordon.trait(longest), cordon.trait(TWO)]))
        cut = cordon.of_traits([cordon.trait(
            cordon.Cordon(cordon.Source.CYBORG, 1.0, 'ä' * 50, ''))])
        self.assertEqual('ä' * 20, cut.who)

    def test_a_trait_of_somebody_else(self):
        for name in ('CUSTOM_GPU_CORDON_', 'CUSTOM_GPU_CORDON_1',
                     'CUSTOM_GPU_CORDON_MFRGG', 'CUSTOM_GPU_UNHEALTHY_ECC',
                     cordon.trait(cordon.Cordon(
                         cordon.Source.CYBORG, 1e14, 'a', 'b')),
                     cordon.trait(cordon.Cordon(
                         cordon.Source.CYBORG, 1.0, 'a', '\x1b[2J'))):
            self.assertIsNone(cordon.of_traits([name]), name)

    def test_what_the_api_shows(self):
        self.assertEqual((ONE, TWO),
                         cordon.of_json(cordon.to_json((ONE, TWO))))
        for text in ('{}', '[1]', '[{"source": "me"}]', 'x',
                     cordon.to_json([ONE]).replace('root', '\\u001b')):
            self.assertRaises((ValueError, KeyError, TypeError),
                              cordon.of_json, text)

    def test_a_record_holds_it(self):
        self.assertEqual((ONE, TWO), codec.decode(
            cordon.Cordons, codec.encode((ONE, TWO))))

    def test_a_reason(self):
        self.assertEqual('a fan', cordon.reason(' a fan\n'))
        for text in ('', ' ', 'a\nb', 'x' * 91, 'ä' * 46):
            self.assertRaises(exception.InvalidValue, cordon.reason, text)

    def test_what_the_services_tell(self):
        told, traits = (ONE, PLAIN), (cordon.trait(TWO),)
        self.assertEqual((ONE,), cordon.current(told, True, traits))
        self.assertEqual((ONE, TWO), cordon.current(told, False, traits))
        self.assertEqual((ONE, PLAIN), cordon.current(told, False))
        self.assertEqual((cordon.Cordon(cordon.Source.CYBORG),),
                         cordon.current((), False))
