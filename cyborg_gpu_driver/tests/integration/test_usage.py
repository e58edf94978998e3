# SPDX-License-Identifier: Apache-2.0

"""GPU-hours of the servers of two projects."""

import collections
import time

from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.record import uptime
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base


@scope.only_in_all
class UsageTest(base.TestCase):
    """The agents know whose servers have slices, and for how long."""

    def milliseconds(self):
        """The sums of all hosts by profile and project."""
        found = collections.Counter()
        for host in self.cloud.hosts:
            path = self.cloud.state_path(host)
            last = uptime.last(path)
            for record in store.Store(path).records().values():
                found.update(record.ledger.sums(last))
        return found

    def test_the_projects_of_servers(self):
        before, start = self.milliseconds(), time.monotonic()
        flavor = self.flavor_of('CUSTOM_NVIDIA_1G_10GB')
        first = self.boot(flavor)
        self.boot(flavor, self.user2)
        keys = [('1g.10gb', user.current_project_id)
                for user in (self.user1, self.user2)]
        self.until(lambda: all(
            self.milliseconds()[key] > before[key] for key in keys),
            'the agents know whose the slices are')
        self.delete(first)
        spent = self.milliseconds() - before
        self.assertLessEqual(
            sum(spent.values()), 2000 * (time.monotonic() - start))
