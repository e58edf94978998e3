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

"""``openstack gpu profile sync|create``: profiles, flavors and limits."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.cloud import plan
from cyborg_gpu_driver.cloud import quota
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.osc import base

_PLANNED = 'planned'
_DONE = 'done'
_NOT_DONE = 'not done'
_COLUMNS = ('Action', 'Kind', 'Name', 'Change', 'Result')
_KINDS = ('passthrough', 'vgpu', 'mig')
_QUOTA_COLUMNS = ('Project', 'Project ID', 'Resource Class', 'Limit', 'Used',
                  'Free', 'Source')


class Changing(base.Lister):
    """A command that makes a cloud match a definition."""

    def resolved(self, wanted: definition.Definition
                 ) -> definition.Definition:
        """Return the definition with the UUIDs of its projects."""
        return wanted.resolved({
            name: state.project(self.cloud, name)
            for name in sorted(wanted.projects)})

    def warn(self, wanted: definition.Definition) -> bool:
        """Warn about what no GPU offers; return whether there was a warning.
        """
        texts = plan.unoffered(wanted.items, placement.read_providers(
            self.cloud, progress=base.show_progress))
        for text in texts:
            base.say(f'Warning: {text}')
        return bool(texts)

    def settle(self, changes: list[plan.Change], parsed_args) -> tuple:
        """Make the changes, if they are possible and the user agrees.

        :param parsed_args: with ``dry_run`` and ``yes``.
        :returns: the output of the command.
        """
        if any(change.action is plan.Action.REFUSE for change in changes):
            return self.refuse(changes)
        acting = [change for change in changes if change.acts]
        if not acting:
            base.say('There is nothing to do.')
        elif parsed_args.dry_run:
            return self.answer(changes, lambda change: _PLANNED)
        elif not parsed_args.yes and not _agreed(acting):
            return self.refuse(changes)
        return self.carry_out(changes)

    def carry_out(self, changes: list[plan.Change]) -> tuple:
        """Make the changes, and return the output of the command."""
        acting = [change for change in changes if change.acts]
        results = {}
        for number, (change, error) in enumerate(self.make(acting), 1):
            results[change.item.key] = (_DONE if error is None
                                        else f'failed: {error}')
            if error is not None:
                self.code = 1
                base.say(f'{error}\n{number - 1} of {len(acting)} changes '
                         'were made. Correct the problem and run the command '
                         'again to make the others.')
            elif sys.stderr.isatty():
                base.say(f'{number} of {len(acting)}: {change.action.value} '
                         f'{change.item.kind.value} {change.item.name}')
        return self.answer(changes, lambda change: results.get(
            change.item.key, _NOT_DONE))

    def make(self, changes: list[plan.Change]
             ) -> Iterator[tuple[plan.Change, exception.CloudError | None]]:
        """Make the changes, and yield each with its error, if any."""
        return state.carry_out(self.cloud, changes)

    def refuse(self, changes: list[plan.Change], reason: str = '') -> tuple:
        """Change nothing, and return the output of the command."""
        self.code = 1
        base.say(f'{reason}Nothing was changed.')
        return self.answer(changes, lambda change: _NOT_DONE)

    @staticmethod
    def answer(changes, result) -> tuple:
        """Return columns and rows.

        :param result: returns the result of a change that does anything.
        """
        return _COLUMNS, [
            (change.action.value, change.item.kind.value, change.item.name,
             change.text, result(change) if change.acts else '')
            for change in changes]


class SyncProfile(Changing):
    """Make device profiles, flavors and limits what a file says.

    What is to be changed is shown first. What is in use is never deleted or
    replaced, and what this command has not made is not touched. Exits 1 if
    the cloud is not what the file says in the end.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        add_definition(parser)
        parser.add_argument(
            '--prune', action='store_true',
            help='delete objects that this command created and that are not '
                 'in the file')
        parser.add_argument(
            '--adopt', action='store_true',
            help='take over objects that are in the file and that this '
                 'command did not create')
        parser.add_argument(
            '--strict', action='store_true',
            help='refuse a device profile that no GPU of the cloud can serve '
                 'now')
        return parser

    def take_action(self, parsed_args):
        text, source = output.read_text(parsed_args.file)
        wanted = self.resolved(definition.parse(text, source))
        present = state.read(self.cloud, wanted, parsed_args.prune)
        changes = list(plan.make(wanted.items, present, parsed_args.adopt,
                                 parsed_args.prune))
        if self.warn(wanted) and parsed_args.strict:
            return self.refuse(changes)
        if not parsed_args.prune:
            for item in plan.left_over(wanted.items, present):
                base.say(f'{item.kind.value} {item.name} is not in the file; '
                         '--prune deletes it.')
        return self.settle(changes, parsed_args)


class CreateProfile(Changing):
    """Create a device profile for GPUs and, if wanted, a flavor for it."""

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('name', metavar='NAME',
                            help='name of the device profile')
        parser.add_argument(
            '--gpu', metavar='PROFILE', required=True,
            help='what a server gets: passthrough, a GPU instance profile '
                 'such as 1g.10gb or a vGPU type such as T4-2B')
        parser.add_argument(
            '--count', type=int, default=1, metavar='N',
            help='number of them, on any GPUs of one host (default: 1)')
        parser.add_argument(
            '--together', action='store_true', help='take all of them from '
                                                    'one GPU')
        parser.add_argument(
            '--trait', action='append', default=[], metavar='TRAIT',
            help='trait that the GPU must have; may be repeated')
        parser.add_argument(
            '--forbidden-trait', action='append', default=[],
            metavar='TRAIT',
            help='trait that the GPU must not have; may be repeated')
        add_flavor(parser, 'a flavor that names it')
        return parser

    def take_action(self, parsed_args):
        wanted = self.resolved(definition.parse(
            json.dumps(_document(parsed_args)), 'arguments'))
        present = state.read(self.cloud, wanted)
        for item in wanted.items:
            if item.key in present:
                raise self.cloud.error(f'{item.kind.value} {item.name} '
                                       'already exists')
        self.warn(wanted)
        return self.carry_out(list(plan.make(wanted.items, present)))


def add_definition(parser: argparse.ArgumentParser) -> None:
    """Add the file, and the options that :meth:`Changing.settle` needs."""
    parser.add_argument('file', metavar='FILE',
                        help='definition file; - is standard input')
    parser.add_argument('--dry-run', action='store_true',
                        help='show what would be done, and do nothing')
    parser.add_argument('--yes', action='store_true', help='do not ask for '
                                                           'confirmation')


def add_flavor(parser: argparse.ArgumentParser, title: str
               ) -> argparse._ArgumentGroup:
    """Add the options for a flavor.

    :returns: the group of the options, to which the caller can add more.
    """
    group = parser.add_argument_group(title)
    group.add_argument('--flavor', metavar='NAME')
    group.add_argument('--vcpus', type=int, metavar='N')
    group.add_argument('--ram', type=int, metavar='MIB')
    group.add_argument('--disk', type=int, metavar='GIB')
    group.add_argument(
        '--project', action='append', metavar='PROJECT',
        help='project that may use the flavor; may be repeated (default: the '
             'flavor is public)')
    return group


def flavors(parsed_args: argparse.Namespace, profile: str
            ) -> list[dict[str, Any]]:
    """Return the wanted flavor, if any, as in a definition file.

    :param profile: the device profile that the flavor names.
    :raises InvalidValue: if there are sizes without a name.
    """
    sizes = {key: getattr(parsed_args, key)
             for key in ('vcpus', 'ram', 'disk', 'project')
             if getattr(parsed_args, key) is not None}
    if parsed_args.flavor is not None:
        return [{'name': parsed_args.flavor, 'profile': profile,
                 **{'projects' if key == 'project' else key: value
                    for key, value in sizes.items()}}]
    for key, value in sizes.items():
        raise exception.InvalidValue(
            what=f'--{key}', value=value,
            expected='it requires --flavor')
    return []


def _document(parsed_args):
    """Return the definition file that the arguments stand for."""
    profile = {'name': parsed_args.name, 'groups': [{
        'gpu': parsed_args.gpu, 'count': parsed_args.count,
        'together': parsed_args.together, 'required': parsed_args.trait,
        'forbidden': parsed_args.forbidden_trait}]}
    return {'version': definition.VERSION, 'profiles': [profile],
            'flavors': flavors(parsed_args, parsed_args.name)}


def _agreed(changes):
    """Ask the user whether to make the changes."""
    for change in changes:
        base.say(f'{change.action.value} {change.item.kind.value} '
                 f'{change.item.name} ({change.text})')
    return output.agreed(f'Make these {len(changes)} changes?')


class ListProfile(base.Lister):
    """List what the cloud's GPUs offer, and how servers get it.

    Each row is a GPU profile: its hosts, its capacity, and the device profiles
    and flavors that ask for it. Profiles of one GPU exclude each other: the
    free capacity of a profile is available only until something else is
    created on the GPU.
    """

    brief = ('Profile', 'GPUs', 'Total', 'Used', 'Free', 'Device Profiles',
             'Flavors')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', metavar='HOST',
                            help='show only this compute node')
        parser.add_argument(
            '--model', metavar='MODEL',
            help='show only GPUs whose model name contains this text, such as '
                 'A100')
        parser.add_argument('--kind', choices=_KINDS, help='show only '
                                                           'profiles of this '
                                                           'kind')
        parser.add_argument('--numa', action='store_true',
                            help='show NUMA nodes among the traits')
        return parser

    def take_action(self, parsed_args):
        found = placement.read_providers(self.cloud,
                                         progress=base.show_progress)
        device_profiles = [existing.item for existing
                           in state.profiles(self.cloud)]
        flavors = self._flavors()
        if not (parsed_args.host or parsed_args.model or parsed_args.kind):
            for text in plan.unoffered(device_profiles, found):
                base.say(text)
        return (('Profile', 'Resource Class', 'Traits', 'Hosts', 'GPUs',
                 'Total', 'Used', 'Reserved', 'Free', 'Device Profiles',
                 'Flavors'),
                [_row(entry, device_profiles, flavors)
                 for entry in hosts.catalogue(
                     found, parsed_args.host, parsed_args.model,
                     parsed_args.kind, parsed_args.numa)])

    def _flavors(self):
        """Return flavors that name device profiles; None if Nova fails."""
        try:
            with self.cloud.errors():
                return [existing.item for existing
                        in state.flavors(self.cloud)]
        except exception.CloudError as error:
            base.say(f'The flavors are not known: {error}')
            return None


def _row(entry, device_profiles, flavors):
    asking = hosts.profiles_asking(device_profiles, entry.resource_class)
    return (
        entry.label, entry.resource_class,
        output.Names(entry.traits), output.Names(entry.hosts), entry.gpus,
        entry.total, entry.used, entry.reserved, entry.free,
        output.Names(asking),
        output.Optional(None) if flavors is None
        else output.Names(hosts.flavors_naming(flavors, asking)))


class _Quotas(base.Lister):
    """Common to the commands that show quotas."""

    brief = tuple(name for name in _QUOTA_COLUMNS if name != 'Project ID')

    def limits(self):
        """Return the limits of Nova, for GPUs and for other resources."""
        return state.limits_of_region(self.cloud)

    @staticmethod
    def answer(found, names):
        """Return columns and rows.

        :param found: quotas.
        :param names: of projects, by UUID.
        """
        return _QUOTA_COLUMNS, [_quota_row(one, names) for one in found]


class ListQuota(_Quotas):
    """List the GPU quotas of all projects.

    The table has the default of each resource class, and a row for each
    resource class of which a project has a limit of its own or servers.
    """

    def take_action(self, parsed_args):
        limits = self.limits()
        names = state.project_names(self.cloud)
        found = list(quota.defaults(limits))
        usages = placement.at_once(
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


class SetQuota(Changing):
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
        return state.carry_out(self.cloud, changes, mark=False)


def _quota_row(one, names):
    return (
        output.Optional(one.project and names.get(one.project, '')),
        output.Optional(one.project), one.resource_class,
        output.Optional(one.limit), output.Optional(one.used),
        output.Optional(one.free),
        'project' if one.own else 'none' if one.limit is None else 'default')
