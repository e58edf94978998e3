# SPDX-License-Identifier: Apache-2.0


"""Checks of Cyborg, with plain values as input."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.cmd.doctor import placement
from cyborg_gpu_driver.cmd.doctor.rules import cyborg as rules_cyborg
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.cmd.doctor import case

ERROR, WARNING = case.ERROR, case.WARNING
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

    def test_release(self):
        differs = facts.Release('19.0.0', 'x differs')
        self.expect(
            rules_cyborg.release,
            (ERROR, 'x differs; only whole GPUs',
             self.facts(release=differs)),
            (WARNING, 'x differs', self.facts(WHOLE, differs)),
            *((WARNING, f'Cyborg {version} was not tested',
               self.facts(release=facts.Release(version)))
              for version in ('15.0.1', '18.0.0', 'unknown')))

    def test_two_drivers_for_one_gpu(self):
        both = {'enabled_drivers': ('cyborg_gpu_driver', 'nvidia_gpu_driver')}
        self.expect(rules_cyborg.drivers, (
            WARNING, 'reported twice', self.facts(**both)))
        self.silent(rules_cyborg.drivers, self.facts(
            policy.Policy('o', policy.Mode.OFF), **both))

    def test_many_providers(self):
        self.expect(rules_cyborg.providers, (
            WARNING, 'have 65 resource providers',
            dataclasses.replace(self.facts(), providers=65)))
        self.silent(rules_cyborg.providers,
                    dataclasses.replace(self.facts(), providers=64))

    def test_host_name(self):
        def answer(*providers):
            return placement.Answer(frozenset(providers))

        self.expect(
            rules_cyborg.host_name,
            (ERROR, 'resource_provider_name is other', self.facts(
                provider_name='other', answer=answer(FULL, 'other'))),
            (ERROR, '[DEFAULT] host = gpu1.example.org',
             self.facts(host='gpu1', answer=answer(FULL))))
        self.silent(rules_cyborg.host_name,
                    self.facts(host='n1', answer=answer('n1', FULL)))
        for said in (None, answer(), placement.Answer(problem='p')):
            self.silent(rules_cyborg.host_name, self.facts(answer=said))
            self.expect(
                rules_cyborg.host_name,
                (WARNING, 'openstack hypervisor list',
                 self.facts(host='n1', answer=said)),
                *((ERROR, f'host is {name}, but libvirt has {FULL}',
                   self.facts(host=name, answer=said))
                  for name in ('gpu1', 'GPU1.example.org', 'gpu1.local')))
        self.assertEqual(
            {'n1', 'p', 'gpu1', FULL},
            rules_cyborg.names(self.facts(host='n1', provider_name='p')))

    def test_placement(self):
        self.expect(
            rules_cyborg.placement,
            (ERROR, 'no credentials', self.facts(has_placement_user=False)),
            (ERROR, 'named gpu1 or gpu1.example.org: cyborg-agent does not '
             'start', self.facts(answer=placement.Answer())))
        self.silent(rules_cyborg.placement, self.facts(
            answer=placement.Answer(frozenset(('x',)))))

    def test_service_roles(self):
        self.expect(
            rules_cyborg.service_roles,
            (ERROR, '403', self.facts(service_roles=())),
            (ERROR, 'Cyborg 16.0.0 requires no service token', self.facts(
                release=facts.Release('16.0.0', wants_service_token=False))))
