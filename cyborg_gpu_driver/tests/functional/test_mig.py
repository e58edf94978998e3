# SPDX-License-Identifier: Apache-2.0

"""MIG slices cut at bind, on the released Cyborg and Placement."""


from cyborg_gpu_driver.tests.functional import gpu_cloud

_PROFILES = {
    # label: (board's profile id, start of the first instance, total)
    '1g.10gb': (19, 6, 7), '1g.10gb.me': (20, 6, 1), '1g.20gb': (15, 6, 4),
    '2g.20gb': (14, 4, 3), '3g.40gb': (9, 4, 2), '4g.40gb': (5, 0, 1),
    '7g.80gb': (0, 0, 1)}


def _class(label):
    return 'CUSTOM_NVIDIA_' + label.upper().replace('.', '_')


class OneGpuCase(gpu_cloud.GpuTestCase):

    starts_reported = True
    overrides = {
        'gpu': {'policies': 'one'},
        'gpu_policy:one': {'mode': 'mig',
                           'match_address': gpu_cloud.GpuTestCase.gpu}}


class BindTest(OneGpuCase):

    def test_every_profile_is_cut_where_planned_and_given_back(self):
        self.assertEqual(
            {label: (total, 0)
             for label, (_, _, total) in _PROFILES.items()},
            self.reserved())
        for label, (profile_id, start, _) in _PROFILES.items():
            server = self.cloud.bind(self.profile(_class(label)))
            self.assertEqual([(profile_id, start)], self.placements())
            (arq,) = server.arqs
            self.assertEqual('MDEV', arq['attach_handle_type'])
            self.assertEqual([arq['attach_handle_uuid']], [*self.mdevs()])
            info = arq['attach_handle_info']
            function = '{domain}:{bus}:{device}.{function}'.format(**info)
            self.assertEqual(
                [(function, int(info['asked_type'].split('-')[1]))],
                [*self.mdevs().values()])
            self.cloud.unbind(server)
            self.assertEqual(self.untouched, self.everything(), label)
        self.assertEqual(0, self.handles_in_use())

    def test_siblings_are_reserved_before_the_bind_returns(self):
        # No report in between: the bind has written what is seen.
        two = self.cloud.bind(self.profile(_class('2g.20gb')))
        self.assertEqual([(14, 4)], self.placements())
        self.assertEqual(
            {'1g.10gb': (7, 2), '1g.10gb.me': (1, 0), '1g.20gb': (4, 1),
             '2g.20gb': (3, 0), '3g.40gb': (2, 1), '4g.40gb': (1, 0),
             '7g.80gb': (1, 1)}, self.reserved())
        four = self.cloud.bind(self.profile(_class('4g.40gb')))
        self.assertEqual([(5, 0), (14, 4)], self.placements())
        self.assertEqual(
            {'1g.10gb': (7, 6), '1g.10gb.me': (1, 0), '1g.20gb': (4, 3),
             '2g.20gb': (3, 2), '3g.40gb': (2, 2), '4g.40gb': (1, 0),
             '7g.80gb': (1, 1)}, self.reserved())
        before = self.reserved()
        self.report()
        self.assertEqual(before, self.reserved())
        self.cloud.unbind(two)
        self.cloud.unbind(four)
        self.assertEqual(self.untouched, self.everything())

    def test_two_in_one_server(self):
        group = {f'resources:{_class("1g.10gb")}': '2'}
        self.cloud.cyborg.create_device_profile('two', group)
        server = self.cloud.bind('two')
        self.assertEqual(2, len(server.arqs))
        self.assertEqual(2, len(self.mdevs()))
        self.cloud.unbind(server)
        self.assertEqual(self.untouched, self.everything())

    def test_an_agent_started_again_knows_what_is_bound(self):
        server = self.cloud.bind(self.profile(_class('3g.40gb')))
        bound = self.everything()
        self.end_agent()
        self.report()
        self.assertEqual(bound, self.everything())
        self.end_agent()
        self.cloud.unbind(server)
        self.assertEqual({}, self.mdevs())
        # Only a report knows whether an operator has disabled the GPU while
        # no agent ran; so what is closed stays closed until then.
        self.report()
        self.assertEqual(self.untouched, self.everything())

    def test_what_a_guest_still_holds_is_removed_by_a_later_report(self):
        server = self.cloud.bind(self.profile(_class('3g.40gb')))
        world = self.world
        (handle,) = self.mdevs()
        world.start_guest(handle)
        self.cloud.unbind(server)
        self.assertEqual([(9, 4)], self.placements())
        # Cyborg considers the slice free. The report reserves what cannot be
        # made.
        self.cloud.report()
        self.assertEqual((2, 1), self.reserved()['3g.40gb'])
        world.stop_guest(handle)
        self.report()
        self.assertEqual(self.untouched, self.everything())

    def test_after_a_reboot_all_is_back_before_the_agent_is(self):
        servers = [self.cloud.bind(self.profile(_class(label)))
                   for label in ('3g.40gb', '1g.10gb')]
        bound, mdevs = self.everything(), self.mdevs()
        placements = self.placements()
        self.world.reboot()
        self.assertEqual([], self.placements())
        self.restore()
        self.assertEqual(placements, self.placements())
        self.assertEqual(mdevs, self.mdevs())
        self.end_agent()
        self.report()
        self.assertEqual(bound['placement'], self.cloud.placement.snapshot())
        for server in servers:
            self.cloud.unbind(server)
        self.report()
        after = self.everything()
        for part in ('placement', 'arqs', 'journal'):
            self.assertEqual(self.untouched[part], after[part])
        self.assertEqual(([], {}), (self.placements(), self.mdevs()))
