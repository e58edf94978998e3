# SPDX-License-Identifier: Apache-2.0

"""GPUs of mode auto through restarts, reboots, races, cordons and damage."""

import contextlib
import random

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.functional import test_elastic
from demo_lib import client
from demo_lib import nova_part

_STEPS = 40
"""Steps of the random walk."""
_PARTS = ('1g.10gb', '3g.40gb')
_SHARES = ('A100DX-20C', 'A100DX-40C')


class EndsTest(test_elastic.ElasticCase):

    def test_a_restart_keeps_the_role(self):
        server = self.cloud.bind(self.slice)
        before, resets = self.reserved(), self.hardware().resets
        self.end_agent()
        self.report()
        self.assertEqual(before, self.reserved())
        self.assertEqual(resets, self.hardware().resets)
        self.assertEqual(('nvidia', True, True), self.is_now())
        self.cloud.unbind(server)
        self.end_agent()
        self.report()
        self.report()
        self.assertEqual(test_elastic.IDLE, self.reserved())

    def test_a_reboot_keeps_the_role(self):
        for asked, closed in scope.first(
                (self.slice, ('passthrough', *_SHARES)),
                (self.vgpu, ('passthrough', *_PARTS))):
            server = self.cloud.bind(asked)
            before, there = self.reserved(), self.is_now()
            self.world.reboot()
            self.end_agent()
            self.restore()
            self.report()
            self.assertEqual(before, self.reserved())
            self.assert_closed(*closed)
            self.assertEqual(there, self.is_now())
            self.cloud.unbind(server)
            self.report()
            self.report()
            self.assertEqual(test_elastic.IDLE, self.reserved())

    def test_a_lost_record_keeps_the_role(self):
        server = self.cloud.bind(self.slice)
        host_files.damage(self.state_path, self.gpu)
        self.end_agent()
        self.report()
        (entry,) = self.journal()
        self.assertEqual('3g.40gb', entry['profile'])
        self.assertRaises((nova_part.NoCandidates, client.ApiError),
                          self.cloud.bind, self.vgpu)
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind,
                          self.whole)
        self.cloud.unbind(server)
        self.assert_opened_by_an_operator()

    def assert_opened_by_an_operator(self):
        """Check that only that opens a GPU whose record was lost."""
        for _ in range(3):
            self.report()
        self.assert_closed(*test_elastic.IDLE)
        self.uncordon()
        self.report()
        self.assertEqual(test_elastic.IDLE, self.reserved())


class RaceTest(test_elastic.ElasticCase):

    @contextlib.contextmanager
    def before_the_next_bind(self, act):
        """Call ``act`` between an allocation and its bind."""
        agent = self.driver._running()
        original = agent.bind

        def happened(*arguments):
            agent.bind = original
            act()
            return original(*arguments)

        agent.bind = happened
        try:
            yield
        finally:
            agent.bind = original

    def test_the_first_bind_of_two_roles_wins(self):
        servers = []
        with self.before_the_next_bind(
                lambda: servers.append(self.cloud.bind(self.vgpu))):
            self.assertRaises(nova_part.BindFailed, self.cloud.bind,
                              self.slice)
        self.assertEqual(('nvidia', False, True), self.is_now())
        (entry,) = self.journal()
        self.assertEqual('A100DX-20C', entry['profile'])
        self.assert_closed('passthrough', *_PARTS)

    def test_placement_that_does_not_answer_refuses(self):
        profile = self.slice
        with self.before_the_next_bind(self._cut_placement):
            self.assertRaises(nova_part.BindFailed, self.cloud.bind,
                              profile)
        self.assertEqual(('vfio-pci', False, False), self.is_now())

    def _cut_placement(self):
        stack = contextlib.ExitStack()
        stack.enter_context(self.no_placement())
        self.addCleanup(stack.close)


class WalkTest(test_elastic.ElasticCase):
    """Servers come and go at random, and the agent ends now and then."""

    @scope.only_in_all
    def test_never_two_roles_at_once(self):
        chance = random.Random(7)
        servers = []
        kinds = {'whole': self.whole, 'slice': self.slice,
                 'small': self.small, 'vgpu': self.vgpu}
        for _ in range(_STEPS):
            what = chance.choice([*kinds, 'gone', 'gone', 'gone', 'report',
                                  'restart'])
            if what in kinds:
                with contextlib.suppress(nova_part.NoCandidates,
                                         nova_part.BindFailed):
                    servers.append((what, self.cloud.bind(kinds[what])))
            elif what == 'gone' and servers:
                _, server = servers.pop(chance.randrange(len(servers)))
                self.cloud.unbind(server)
            else:
                if what == 'restart':
                    self.end_agent()
                self.report()
            self.check(servers)
        for _, server in servers:
            self.cloud.unbind(server)
        for _ in range(3):
            self.report()
        self.assertEqual(test_elastic.IDLE, self.reserved())

    def check(self, servers):
        found = {{'small': 'slice'}.get(kind, kind) for kind, _ in servers}
        self.assertLessEqual(len(found), 1, found)
        driver, sliced, _ = self.is_now()
        if found == {'whole'}:
            self.assertEqual('vfio-pci', driver)
        elif found:
            self.assertEqual(('nvidia', found == {'slice'}),
                             (driver, sliced))
