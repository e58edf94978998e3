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


"""The released nova-scheduler claims what the weigher puts first."""

from __future__ import annotations

import collections
import uuid

from nova import exception
from nova.scheduler import manager

from cyborg_gpu_driver.tests.nova import weigher_case

FIRST, SECOND = weigher_case.GPUS


class Scheduler(manager.SchedulerManager):
    """Nova's own, but for the compute nodes in its database."""

    states = ()

    def _get_all_host_states(self, context, spec_obj, provider_summaries):
        return iter(self.states)


class SchedulerTest(weigher_case.WeigherCase):

    USES_DB = True

    def setUp(self):
        super().setUp()
        self.flags(enabled_filters=[], track_instance_changes=False,
                   group='filter_scheduler')
        self.host('one')
        self.host('two', gpus=(FIRST, SECOND))

    def schedule(self, spec):
        """What select_destinations does once it has the candidates.

        :returns: names of the hosts of the servers that are to be made.
        """
        by_provider = collections.defaultdict(list)
        states = self.candidates(spec)
        for request in self.requests(spec):
            for provider in request['allocations']:
                by_provider[provider].append(request)
        scheduler = Scheduler()
        scheduler.states = states
        selections = scheduler._schedule(
            self.context, spec,
            [str(uuid.uuid4()) for _ in range(spec.num_instances)],
            by_provider, {}, weigher_case.VERSION)
        return sorted(selected[0].service_host for selected in selections)

    def test_each_of_several_servers_gets_a_gpu(self):
        self.assertEqual(['one', 'two', 'two'],
                         self.schedule(self.spec('4g.40gb', servers=3)))

    def test_without_it_nova_finds_no_host_for_the_third(self):
        self.flags(weight_classes=[], group='filter_scheduler')
        self.assertRaises(exception.NoValidHost, self.schedule,
                          self.spec('4g.40gb', servers=3))
