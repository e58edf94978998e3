# SPDX-License-Identifier: Apache-2.0


import itertools
import re
import string

import hypothesis
from hypothesis import strategies
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests.unit.report import samples

CUSTOM = re.compile(r'CUSTOM_[A-Z0-9_]+', re.ASCII)

ADDRESSES = strategies.builds(
    model.PciAddress, strategies.integers(0, 0xffffffff),
    strategies.integers(0, 0xff), strategies.integers(0, 0x1f),
    strategies.integers(0, 7))
HOSTS = strategies.one_of(
    strategies.text(string.ascii_letters + string.digits + '-._',
                    min_size=1, max_size=255),
    strategies.text(min_size=1, max_size=255))


class TestProviderName(base.BaseTestCase):

    def test_each_kind_of_offer(self):
        long = 'c' * 64 + '.' + 'd' * 63
        for host, offer, expected in (
                ('compute1', samples.whole_offer(),
                 'compute1_gpu_0000:d8:00.0_passthrough'),
                ('compute1.example.org',
                 samples.a100_offers(profile='1g.10gb+me')[0],
                 'compute1.example.org_gpu_0000:07:00.0_1g.10gb.me'),
                (long, samples.t4_offer(), f'{long}_gpu_0000:3b:00.0_T4-2B')):
            self.assertEqual(expected, names.provider_name(host, offer))

    def test_known_profiles_keep_their_names(self):
        for profile in samples.MIG_PROFILES + samples.VGPU_TYPES:
            offer = samples.t4_offer(profile=profile)
            self.assertEqual(profile.replace('+', '.'), names.label(offer))

    def test_long_hosts_with_one_beginning_stay_apart(self):
        offer = samples.whole_offer()
        first = names.provider_name('c' * 250 + '1', offer)
        second = names.provider_name('c' * 250 + '2', offer)
        self.assertNotEqual(first, second)
        self.assertIn('c' * 100, first)
        # Each GPU of a host has the same one.
        self.assertIn(first.partition('_gpu_')[0], names.provider_name(
            'c' * 250 + '1', samples.t4_offer()))

    def test_no_host(self):
        self.assertRaises(exception.InvalidValue, names.provider_name, '',
                          samples.whole_offer())

    @hypothesis.given(HOSTS, ADDRESSES,
                      strategies.text(min_size=1, max_size=300))
    def test_limits(self, host, address, profile):
        offer = samples.t4_offer(gpu=address, profile=profile)
        name = names.provider_name(host, offer)
        self.assertLessEqual(len(name), 200)
        self.assertRegex(name, r'\A[A-Za-z0-9._:-]+\Z')
        self.assertEqual(name, names.provider_name(host, offer))
        self.assertIn(f'_gpu_{address}_', name)
        known = names.parse_provider_name(name)
        self.assertEqual((str(address), names.label(offer)),
                         (known.gpu, known.label))
        self.assertEqual(f'{known.host}_gpu_{address}_{known.label}', name)

    @hypothesis.given(strategies.lists(
        strategies.tuples(HOSTS, ADDRESSES,
                          strategies.sampled_from(samples.MIG_PROFILES
                                                  + samples.VGPU_TYPES)),
        unique=True, min_size=2, max_size=6))
    def test_unique(self, triples):
        made = [names.provider_name(host, samples.t4_offer(
            gpu=address, profile=profile))
            for host, address, profile in triples]
        self.assertEqual(len(triples), len(set(made)))

    def test_what_is_none_of_ours(self):
        for name in ('compute1', 'compute1_0000:D8:00.0', 'gpu_gpu_gpu_gpu',
                     'NVIDIA_0000:d8:00.0_passthrough',
                     'compute1_gpu_0000:d8:00.0_', '_gpu_0000:d8:00.0_x',
                     'compute1_gpu_0000:d8:00.8_passthrough'):
            self.assertIsNone(names.parse_provider_name(name), name)


class TestResourceClass(base.BaseTestCase):

    def resource_class(self, profile):
        return names.resource_class(samples.t4_offer(profile=profile))

    def test_profiles(self):
        for profile, expected in (
                ('1g.10gb', 'CUSTOM_NVIDIA_1G_10GB'),
                ('1g.10gb+me', 'CUSTOM_NVIDIA_1G_10GB_ME'),
                ('1g.24gb-me', 'CUSTOM_NVIDIA_1G_24GB_NOME'),
                ('1g.24gb+me.all', 'CUSTOM_NVIDIA_1G_24GB_ME_ALL'),
                ('4g.96gb+gfx', 'CUSTOM_NVIDIA_4G_96GB_GFX'),
                ('1c.3g.20gb', 'CUSTOM_NVIDIA_1C_3G_20GB'),
                ('T4-2B', 'CUSTOM_NVIDIA_T4_2B'),
                ('A100-1-5CME', 'CUSTOM_NVIDIA_A100_1_5CME')):
            self.assertEqual(expected, self.resource_class(profile))

    def test_injective_and_valid_over_all_that_exist(self):
        everything = samples.MIG_PROFILES + samples.VGPU_TYPES
        made = {profile: self.resource_class(profile)
                for profile in everything}
        for one, two in itertools.combinations(made, 2):
            self.assertNotEqual(made[one], made[two], (one, two))
        for name in made.values():
            self.assertTrue(CUSTOM.fullmatch(name), name)

    @hypothesis.given(strategies.text(max_size=600))
    def test_always_valid(self, profile):
        name = self.resource_class(profile)
        self.assertTrue(CUSTOM.fullmatch(name), name)
        self.assertLessEqual(len(name), 255)

    def test_long_names_stay_apart(self):
        made = {self.resource_class('x' * 400 + end) for end in '12'}
        self.assertEqual(2, len(made))
        for name in made:
            self.assertEqual(255, len(name))
            self.assertTrue(CUSTOM.fullmatch(name), name)

    def test_names_without_a_usable_character_stay_apart(self):
        made = {self.resource_class(profile) for profile in ('?', '??')}
        self.assertEqual(2, len(made))
        for name in made:
            self.assertRegex(name, r'\ACUSTOM_NVIDIA_[0-9A-F]{12}\Z')
