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

"""``openstack gpu baremetal profile create``, ``config drive create``."""

from __future__ import annotations

import argparse
import json

from osc_lib.command import command

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import baremetal
from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.cloud import plan
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.osc import base
from cyborg_gpu_driver.osc import profile as osc_profile
from cyborg_gpu_driver.partition.layout import devices as layout_devices
from cyborg_gpu_driver.partition.layout import yaml


class CreateBaremetalProfile(osc_profile.Changing):
    """Create a deploy template and a flavor for bare metal from a profile.

    The file is that of "gpu profile sync". All GPUs of a node are partitioned
    as the profile's groups say, or are whole. The command shows which nodes
    support that, and first what it changes. A second run has nothing to do.
    The exit code is 1 if not everything is as asked for in the end.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        osc_profile.add_definition(parser)
        _add_profile(parser)
        parser.add_argument(
            '--set-traits', action='store_true',
            help="add the layout's trait to the nodes that support the layout")
        parser.add_argument(
            '--adopt', action='store_true',
            help='take over a deploy template or flavor that this command did '
                 'not create')
        flavor = osc_profile.add_flavor(parser, 'a flavor for it')
        flavor.add_argument(
            '--resource-class', metavar='CLASS',
            help='resource class of the nodes, as Ironic or Placement writes '
                 'it; other nodes are left out')
        return parser

    def take_action(self, parsed_args):
        profile = _profile(parsed_args)
        resource_class = (
            None if parsed_args.resource_class is None else
            baremetal.class_in_placement(parsed_args.resource_class))
        wanted = _wanted(parsed_args, profile, resource_class)
        baremetal.check_service(self.cloud)
        changes = self._changes(self.resolved(wanted), parsed_args.adopt)
        verdicts = self._judge(profile, resource_class)
        adding = [verdict for verdict in verdicts if parsed_args.set_traits
                  and verdict.can and not verdict.has_trait]
        columns, rows = self.settle(
            [*changes, *(verdict.change for verdict in adding)], parsed_args)
        return columns, rows + [
            ('', resources.Kind.NODE.value, verdict.node.name, str(verdict),
             '') for verdict in verdicts if verdict not in adding]

    def _changes(self, wanted, adopt):
        """Return the changes that give the cloud the wanted items."""
        present = {}
        for item in wanted.items:
            if item.kind is resources.Kind.TEMPLATE:
                template = baremetal.template(self.cloud, item.name)
                found = [] if template is None else [template]
            else:
                found = state.used_flavors(self.cloud, {item.key: item})
            present.update({one.item.key: one for one in found})
        return [baremetal.checked(change, adopt) for change
                in plan.make(wanted.items, present, adopt)]

    def _judge(self, profile, resource_class):
        """Decide which nodes support the layout; warn if none does."""
        listed = baremetal.nodes(self.cloud)
        concerned = baremetal.concerned(listed, resource_class)
        if len(concerned) < len(listed):
            base.say(f'{len(listed) - len(concerned)} nodes are of another '
                     'resource class and have no GPUs.')
        verdicts = [
            baremetal.judge(node, profile, resource_class) for node
            in baremetal.with_gpus(self.cloud, concerned)]
        if not any(verdict.can for verdict in verdicts):
            base.say(f'Warning: no node supports {profile.entry.name}.')
        return verdicts


class CreateConfigDrive(command.Command):
    """Write a config drive with the layout of a profile.

    For "openstack baremetal node deploy --config-drive", which takes this
    JSON. The first boot of the server reads the layout there, so Ironic need
    not write it to the image. The command contacts no service.
    """

    auth_required = False

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('file', metavar='FILE',
                            help='definition file; - is standard input')
        _add_profile(parser)
        parser.add_argument(
            '--add-to', metavar='JSON_FILE',
            help='config drive, as JSON, to which the layout is added')
        return parser

    def take_action(self, parsed_args):
        others, source = {}, 'arguments'
        if parsed_args.add_to is not None:
            text, source = output.read_text(parsed_args.add_to)
            others = _json(text, source)
        drive = _profile(parsed_args).config_drive(others, source)
        self.app.stdout.write(json.dumps(drive, indent=2) + '\n')


def _add_profile(parser):
    """Add the options that choose a profile, and the GPUs to partition."""
    parser.add_argument(
        'name', metavar='NAME', nargs='?',
        help='name of the profile (default: the only one in the file)')
    parser.add_argument(
        '--devices', metavar='INDEX,...', type=_indices,
        help='GPUs to partition, by their position in the order of PCI '
             'addresses, from 0 (default: all)')
    parser.add_argument(
        '--board', metavar='BOARD', action='append',
        help='partition only GPUs of this board, given as device id and '
             'vendor id such as 0x233010DE, and assume that they have these '
             'profiles if inspection found none; may be repeated')


def _json(text, source):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise exception.DocumentError(
            source=source, where='top level', problem=f'not JSON: {error}',
            expected='expected a config drive as JSON') from error


def _indices(text):
    """Parse ``--devices``; the values are checked together with ``--board``.
    """
    try:
        return [int(part) for part in text.split(',')]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a list of positions such as 0,1') from error


def _profile(parsed_args):
    """Return the bare-metal profile that the arguments choose."""
    chosen = {'devices': 'all' if parsed_args.devices is None
              else parsed_args.devices}
    if parsed_args.board:
        chosen['device-filter'] = parsed_args.board
    place = yaml.place_in('--devices and --board')
    yaml.check(chosen, yaml.DEVICES, place)
    devices = layout_devices.Devices.parse(chosen, place)
    text, source = output.read_text(parsed_args.file)
    profiles = [item for item in definition.parse(text, source).items
                if isinstance(item, resources.DeviceProfile)]
    return baremetal.make(
        baremetal.choose(profiles, parsed_args.name, source), source,
        devices)


def _wanted(parsed_args, profile, resource_class):
    """Return the wanted deploy template, and the flavor if one is wanted."""
    sizes = definition.parse(json.dumps({
        'version': definition.VERSION,
        'flavors': osc_profile.flavors(parsed_args, profile.entry.name)}),
        'arguments').items
    if sizes and resource_class is None:
        raise exception.InvalidValue(
            what='--flavor', value=parsed_args.flavor,
            expected='also give --resource-class with the resource class of '
                     'the nodes')
    return definition.Definition((profile.template, *(
        profile.flavor(flavor, resource_class) for flavor in sizes)))
