# SPDX-License-Identifier: Apache-2.0


"""Checks of Cyborg, with plain values as input."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor import placement
from cyborg_gpu_driver.cmd.doctor.rules import cyborg as rules_cyborg
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

GPU = model.Gpu(model.PciAddress.parse('0000:16:00.0'), '10de', '20b2',
                '0302', driver='nvidia')
SLICES = policy.Policy('s', policy.Mode.MIG)
WHOLE = policy.Policy('w', policy.Mode.PASSTHROUGH)
FULL = 'gpu1.example.org'
NAMES = facts.Names('gpu1', FULL)
NONE = facts.Release()


class CyborgCase(case.FindingCase):

    def facts(self, policy_=SLICES, release=NONE, answer=None, host=FULL,
              **cyborg):
        return facts.Facts(
            model.Host((GPU,)), policies.Settings((policy_,)),
            facts.Cyborg(host, **{'has_placement_user': True, **cyborg}),
            machine=facts.Machine(NAMES, release), placement=answer)

    def fails(self, words, findings):
        self.check(finding.Severity.ERROR, words, findings)

    def warns(self, words, findings):
        self.check(finding.Severity.WARNING, words, findings)


class ReleaseTest(CyborgCase):

    def found(self, *release, policy_=SLICES):
        return rules_cyborg.release(self.facts(
            policy_, facts.Release(*release)))

    def test_another_release(self):
        for version in ('15.0.1', '18.0.0', 'unknown'):
            self.warns(f'Cyborg {version} was not tested',
                       self.found(version))

    def test_hooks(self):
        self.fails('x differs; only whole GPUs',
                   self.found('19.0.0', 'x differs'))
        self.warns('x differs', self.found(
            '19.0.0', 'x differs', policy_=WHOLE))


class DriversTest(CyborgCase):

    def found(self, *enabled, **more):
        return list(rules_cyborg.drivers(self.facts(enabled_drivers=enabled,
                                                    **more)))

    def test_two_for_one_gpu(self):
        both = ('cyborg_gpu_driver', 'nvidia_gpu_driver')
        self.warns('reported twice', self.found(*both))
        self.assertEqual([], self.found(
            *both, policy_=policy.Policy('o', policy.Mode.OFF)))


class ProvidersTest(CyborgCase):

    def test_many(self):
        for number, expected in ((64, 0), (65, 1)):
            found = list(rules_cyborg.providers(dataclasses.replace(
                self.facts(), providers=number)))
            self.assertEqual(expected, len(found))
        self.warns('have 65 resource providers', found)


class HostNameTest(CyborgCase):

    def found(self, **more):
        return rules_cyborg.host_name(self.facts(**more))

    def answer(self, *providers):
        return placement.Answer(frozenset(providers))

    def test_two_names(self):
        self.fails('resource_provider_name is other',
                   self.found(provider_name='other',
                              answer=self.answer(FULL, 'other')))

    def test_as_placement_has_it(self):
        self.none(self.found(host='n1', answer=self.answer('n1', FULL)))
        self.fails('[DEFAULT] host = gpu1.example.org',
                   self.found(host='gpu1', answer=self.answer(FULL)))

    def test_as_libvirt_has_it(self):
        for answer in (None, self.answer(),
                       placement.Answer(problem='p', advice='a')):
            self.none(self.found(answer=answer))
            for name in ('gpu1', 'GPU1.example.org', 'gpu1.local'):
                self.fails(f'host is {name}, but libvirt has {FULL}',
                           self.found(host=name, answer=answer))
            self.warns('openstack hypervisor list',
                       self.found(host='n1', answer=answer))

    def test_names_to_ask_for(self):
        self.assertEqual(
            {'n1', 'p', 'gpu1', FULL},
            rules_cyborg.names(self.facts(host='n1', provider_name='p')))


class PlacementTest(CyborgCase):

    def found(self, **more):
        return rules_cyborg.placement(self.facts(**more))

    def test_answers(self):
        self.none(self.found(
            answer=placement.Answer(frozenset(('x',)))))

    def test_no_credentials(self):
        self.fails('no credentials', self.found(has_placement_user=False))

    def test_no_compute_node(self):
        nobody = placement.Answer()
        self.fails('named gpu1 or gpu1.example.org: cyborg-agent does not '
                   'start', self.found(answer=nobody))


class ServiceRolesTest(CyborgCase):

    def test_none(self):
        self.fails('403', rules_cyborg.service_roles(
            self.facts(service_roles=())))

    def test_nobody_is_asked_for_a_token(self):
        self.fails('Cyborg 16.0.0 requires no service token',
                   rules_cyborg.service_roles(self.facts(release=facts.Release(
                       '16.0.0', wants_service_token=False))))
