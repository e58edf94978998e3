# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu profile sync|list``, ``flavor list``, ``quota show``."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.cloud import baremetal
from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import guest
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.cloud import plan
from cyborg_gpu_driver.cloud import quota
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.osc import base

_NOT_DONE = 'not done'
_SELECTING = tuple(f'CUSTOM_GPU_{kind}_'
                   for kind in ('MODEL', 'MEMORY', 'KIND', 'ARCH'))
_QUOTA_COLUMNS = ('Project', 'Project ID', 'Resource Class', 'Limit', 'Used',
                  'Free', 'Source')


class SyncProfile(base.Lister):
    """Make profiles, flavors and limits what a file says.

    What is to be changed is shown first. What is in use is never deleted or
    replaced, and what this command has not made is not touched. For a profile
    with nodes, the command creates a deploy template for bare metal instead
    of a device profile, and gives the nodes that support it its trait. Exits
    1 if the cloud is not what the file says in the end.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('file', metavar='FILE',
                            help='definition file; - is standard input')
        parser.add_argument('--dry-run', action='store_true',
                            help='show what would be done, and do nothing')
        parser.add_argument('--yes', action='store_true',
                            help='do not ask for confirmation')
        parser.add_argument(
            '--prune', action='store_true',
            help='delete objects that this command created and that are not '
                 'in the file')
        parser.add_argument(
            '--adopt', action='store_true',
            help='take over objects that are in the file and that this '
                 'command did not create')
        return parser

    def take_action(self, parsed_args):
        wanted = definition.parse(
            *output.read_text(parsed_args.file), functools.cache(
                lambda name: state.project(self.cloud, name)))
        if wanted.nodes:
            baremetal.check_service(self.cloud)
        providers = placement.read_providers(
            self.cloud, progress=base.show_progress) if any(
                item.kind is resources.Kind.PROFILE
                for item in wanted.items) else ()
        wanted = dataclasses.replace(
            wanted, items=guest.completed(wanted.items, providers))
        present = state.read(self.cloud, wanted, parsed_args.prune)
        changes = list(plan.make(wanted.items, present, parsed_args.adopt,
                                 parsed_args.prune))
        verdicts = self._judge(wanted.nodes)
        adding = [verdict for verdict in verdicts
                  if verdict.can and not verdict.has_trait]
        changes += [verdict.change for verdict in adding]
        if not parsed_args.prune:
            for item in plan.left_over(wanted.items, present):
                base.say(f'{item.kind.value} {item.name} is not in the file; '
                         '--prune deletes it.')
        self._warn(wanted, verdicts, providers)
        rows = self._settle(changes, parsed_args)
        return ('Action', 'Kind', 'Name', 'Change', 'Result'), rows + [
            ('', resources.Kind.NODE.value, verdict.node.name, str(verdict),
             '') for verdict in verdicts if verdict not in adding]

    def _judge(self, profiles: Sequence[baremetal.NodeProfile]
               ) -> list[baremetal.Verdict]:
        """Decide which nodes support the profiles for bare metal."""
        if not profiles:
            return []
        listed = baremetal.nodes(self.cloud)
        classes = {profile.resource_class for profile in profiles}
        concerned = baremetal.concerned(listed, classes)
        if len(concerned) < len(listed):
            base.say(f'{len(listed) - len(concerned)} nodes are of another '
                     'resource class and have no GPUs.')
        nodes = baremetal.with_gpus(self.cloud, concerned)
        return [baremetal.judge(node, profile)
                for profile in profiles for node in nodes]

    def _warn(self, wanted: definition.Definition,
              verdicts: Sequence[baremetal.Verdict],
              providers: Sequence[facts.Node]) -> None:
        """Warn about what no GPU offers."""
        texts = [f'no node supports {profile.entry.name}'
                 for profile in wanted.nodes
                 if not any(verdict.can for verdict in verdicts
                            if verdict.trait == profile.trait)]
        texts += plan.unoffered(wanted.items, providers)
        for text in texts:
            base.say(f'Warning: {text}')

    def _settle(self, changes: list[plan.Change], parsed_args: Any
                ) -> list[tuple]:
        """Make the changes, if they are possible and the user agrees."""
        if any(change.action is plan.Action.REFUSE for change in changes):
            return self._refuse(changes)
        acting = [change for change in changes if change.acts]
        if not acting:
            base.say('There is nothing to do.')
        elif parsed_args.dry_run:
            return _change_rows(changes, {}, 'planned')
        elif not parsed_args.yes and not _agreed(acting):
            return self._refuse(changes)
        results = {}
        for number, (change, error) in enumerate(
                state.carry_out(self.cloud, acting), 1):
            results[change.item.key] = ('done' if error is None
                                        else f'failed: {error}')
            if error is not None:
                self.code = 1
                base.say(f'{error}\n{number - 1} of {len(acting)} changes '
                         'were made. Correct the problem and run the command '
                         'again to make the others.')
            elif sys.stderr.isatty():
                base.say(f'{number} of {len(acting)}: {change.action.value} '
                         f'{change.item.kind.value} {change.item.name}')
        return _change_rows(changes, results, _NOT_DONE)

    def _refuse(self, changes: list[plan.Change]) -> list[tuple]:
        """Change nothing, and return the rows of the changes."""
        self.code = 1
        base.say('Nothing was changed.')
        return _change_rows(changes, {}, _NOT_DONE)


def _change_rows(changes: Iterable[plan.Change],
                 results: Mapping[resources.Key, str], otherwise: str
          ) -> list[tuple]:
    """Return the rows of changes."""
    return [(change.action.value, change.item.kind.value, change.item.name,
             change.text, results.get(change.item.key, otherwise)
             if change.acts else '') for change in changes]


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

    def take_action(self, parsed_args):
        found = placement.read_providers(self.cloud,
                                         progress=base.show_progress)
        device_profiles = state.device_profiles(self.cloud)
        flavors = self.cloud.attempt(
            state.flavors, self.cloud, complain=lambda error: base.say(
                f'The flavors are not known: {error}'))
        for text in plan.unoffered(device_profiles, found):
            base.say(text)
        return (('Profile', 'Resource Class', 'Traits', 'Hosts', 'GPUs',
                 'Total', 'Used', 'Reserved', 'Free', 'Device Profiles',
                 'Flavors'),
                [_row(label, nodes, device_profiles, flavors)
                 for label, nodes in hosts.catalogue(found).items()])


def _row(label, nodes, device_profiles, flavors):
    key = f'resources:{nodes[0].resource_class}'
    asking = sorted(item.name for item in device_profiles
                    if any(key in dict(group) for group in item.groups))
    common = frozenset.intersection(*(node.traits for node in nodes))
    return (
        label, nodes[0].resource_class,
        output.Names(sorted(trait for trait in common if trait.startswith(
            _SELECTING))),
        output.Names(sorted({node.host for node in nodes})),
        len({(node.host, node.gpu) for node in nodes}),
        *(sum(getattr(node, name) for node in nodes)
          for name in ('total', 'used', 'reserved', 'free')),
        output.Names(asking),
        output.Optional(None) if flavors is None else output.Names(sorted(
            existing.item.name for existing in flavors
            if isinstance(existing.item, resources.Flavor)
            and existing.item.profile in asking)))


class ListFlavor(base.Lister):
    """List the flavors with GPUs that the project may use, in words.

    Needs no special role. A flavor counts if it names a device profile, or if
    "gpu profile sync" has created it.
    """

    brief = ('Name', 'GPUs', 'VCPUs', 'RAM', 'Disk')

    def take_action(self, parsed_args):
        rows = []
        for item in self.cloud.sdk.compute.flavors():
            text, ours = resources.unmarked(item.description)
            profile = (item.extra_specs or {}).get(resources.PROFILE_KEY)
            if profile or ours:
                rows.append((item.name, text or f'device profile {profile}',
                             item.vcpus, item.ram, item.disk,
                             output.Optional(profile), item.id))
        return (*self.brief, 'Device Profile', 'ID'), sorted(
            rows, key=lambda row: row[0])


class ShowQuota(base.Lister):
    """Show the GPU quotas of a project, or of all projects.

    For one project, the table has each GPU resource class that has a limit,
    or that the project uses. For all projects, it has the default of each
    resource class, and these rows of each project. Without the role admin,
    users see the project of their credentials.
    """

    brief = tuple(name for name in _QUOTA_COLUMNS if name != 'Project ID')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('project', metavar='PROJECT', nargs='?',
                            help='name or UUID of the project (default: all)')
        return parser

    def take_action(self, parsed_args):
        limits = state.limits(self.cloud)
        found: list[quota.Quota] = []
        name = parsed_args.project
        if name is None and not self.cloud.has_role():
            name = self.cloud.access.project_name
        if name is None:
            names = state.project_names(self.cloud)
            found = list(quota.of_project(None, limits, {}))
        else:
            names = {state.project(self.cloud, name): name}
        usages = placement.at_once(
            lambda project: state.usages(self.cloud, project), names,
            lambda done, total: base.show_progress(done, total, 'projects'))
        for project, used in zip(names, usages, strict=True):
            found += [one for one in quota.of_project(project, limits, used)
                      if name is not None or one.own or one.used]
        found.sort(key=lambda one: (
            one.project is not None, names.get(one.project or '', ''),
            one.project or '', one.resource_class))
        return _QUOTA_COLUMNS, [_quota_row(one, names) for one in found]


def _quota_row(one, names):
    return (
        output.Optional(one.project and names.get(one.project, '')),
        output.Optional(one.project), one.resource_class,
        output.Optional(one.limit), output.Optional(one.used),
        output.Optional(one.free),
        'project' if one.own else 'none' if one.limit is None else 'default')
