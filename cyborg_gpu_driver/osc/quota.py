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

"""``openstack gpu quota list``, ``show`` and ``set``."""

from __future__ import annotations

from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cloud import sync
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.profiles import plan
from cyborg_gpu_driver.cloud.profiles import quota
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.osc import base
from cyborg_gpu_driver.osc import sync as osc_sync

_COLUMNS = ('Project', 'Project ID', 'Resource Class', 'Limit', 'Used',
            'Free', 'Source')


class _Quotas(base.Lister):
    """Common to the commands that show quotas."""

    brief = tuple(name for name in _COLUMNS if name != 'Project ID')

    def limits(self):
        """Return the limits of Nova, for GPUs and for other resources."""
        return state.limits_of_region(self.cloud)

    @staticmethod
    def answer(found, names):
        """Return columns and rows.

        :param found: quotas.
        :param names: of projects, by UUID.
        """
        return _COLUMNS, [_row(one, names) for one in found]


class ListQuota(_Quotas):
    """List the GPU quotas of all projects.

    The table has the default of each resource class, and a row for each
    resource class of which a project has a limit of its own or servers.
    """

    def take_action(self, parsed_args):
        limits = self.limits()
        names = state.project_names(self.cloud)
        found = list(quota.defaults(limits))
        usages = placement_api.at_once(
            lambda project: state.usages(self.cloud, project), names,
            lambda done, total: base.show_progress(done, total, 'projects'))
        for project, used in zip(names, usages, strict=True):
            found += quota.of_project(project, limits, used)
        found.sort(key=lambda one: (
            one.project is not None, names.get(one.project or '', ''),
            one.project or '', one.resource_class))
        return self.answer(found, names)


class ShowQuota(_Quotas):
    """Show the GPU quotas of a project.

    The table has each GPU resource class that a device profile asks for, or
    of which the project has a limit of its own or servers.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('project', metavar='PROJECT',
                            help='name or UUID of the project')
        return parser

    def take_action(self, parsed_args):
        project = state.project(self.cloud, parsed_args.project)
        found = quota.of_project(
            project, self.limits(), state.usages(self.cloud, project),
            quota.requested(state.profiles(self.cloud)))
        return self.answer(found, {project: parsed_args.project})


class SetQuota(osc_sync.Changing):
    """Set GPU quotas of a project, or the defaults of all projects.

    A quota is a unified limit of Keystone. Nova enforces it if [quota] driver
    in nova.conf is nova.quota.UnifiedLimitsDriver, and from 34.0.0 (2026.2)
    on for flavors that name a device profile too.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        whose = parser.add_mutually_exclusive_group(required=True)
        whose.add_argument('--project', metavar='PROJECT',
                           help='name or UUID of the project')
        whose.add_argument(
            '--default', action='store_true',
            help='set the default limits, which apply to projects without a '
                 'limit of their own')
        parser.add_argument(
            'quotas', nargs='+', metavar='PROFILE=LIMIT',
            help='PROFILE is passthrough, a GPU instance profile such as '
                 '1g.10gb, a vGPU type such as T4-2B, or a resource class; '
                 'LIMIT is a number, -1 for no limit, or unset to delete the '
                 'limit')
        return parser

    def take_action(self, parsed_args):
        settings = quota.parse_all(parsed_args.quotas)
        project = (None if parsed_args.default
                   else state.project(self.cloud, parsed_args.project))
        limits = state.limits_of_region(self.cloud)
        changes = list(quota.changes(settings, project, limits))
        if any(change.action is plan.Action.REFUSE for change in changes):
            return self.refuse(changes)
        if not changes:
            base.say('There is nothing to do.')
        return self.carry_out(changes)

    def make(self, changes):
        return sync.carry_out(self.cloud, changes, mark=False)


def _row(one, names):
    return (
        columns.Optional(one.project and names.get(one.project, '')),
        columns.Optional(one.project), one.resource_class,
        columns.Optional(one.limit), columns.Optional(one.used),
        columns.Optional(one.free),
        'project' if one.own else 'none' if one.limit is None else 'default')
