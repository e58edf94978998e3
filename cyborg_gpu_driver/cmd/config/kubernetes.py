# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu kubernetes render``: files for a Kubernetes node's GPUs."""

from __future__ import annotations

import json
import os

from cliff import command

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.kubernetes import node as kubernetes_node
from cyborg_gpu_driver.kubernetes import plugin
from cyborg_gpu_driver.kubernetes import render
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import state as layout_state

_STDOUT = '-'
_CURRENT = 'current'


class RenderKubernetes(command.Command):
    """Write the Kubernetes configuration for GPU nodes like this host.

    Writes the configuration of the NVIDIA device plugin and of mig-parted, the
    labels of the node, a test pod and values for the GPU operator. Nothing
    changes on this host or in a cluster.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--layout', metavar='FILE',
            help="layout file in mig-parted's format; - is standard input "
                 '(default: the current layout of the GPUs)')
        parser.add_argument(
            '--name', metavar='NAME', action='append', default=[],
            help='entry of the layout file; may be left out if there is only '
                 'one; may be repeated, for nodes with the same GPUs and '
                 'different layouts. Without --layout, the name of the '
                 f'current layout (default: {_CURRENT})')
        parser.add_argument(
            '--gpu', metavar='GPU', action='append', default=[],
            help=f'a GPU that the node has, by {choice.WAYS}; may be '
                 'repeated (default: all)')
        parser.add_argument(
            '--strategy', choices=_values(plugin.Strategy),
            help='MIG strategy of all nodes (default: the simplest one that '
                 'offers everything in the layouts)')
        _add_sharing(parser)
        parser.add_argument(
            '--output', metavar='DIR', default=_STDOUT,
            help='directory for the files, created if it does not exist; - '
                 'writes everything to standard output (default: %(default)s)')
        parser.add_argument(
            '-f', '--format', choices=('yaml', 'json'), default='yaml',
            help='yaml: a stream of documents, or with --output the paths of '
                 'the written files; json: one object with all results '
                 '(default: %(default)s)')
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine.for_changes()
        nodes = _nodes(machine, parsed_args)
        strategy = render.choose_strategy(
            parsed_args.strategy and plugin.Strategy(
                parsed_args.strategy),
            [plugin.suited(node) for node in nodes])
        done = render.render(
            [render.Wanted(node, _sharing(parsed_args, node, strategy))
             for node in nodes], strategy)
        paths = ([] if parsed_args.output == _STDOUT
                 else _write(parsed_args.output, done.files))
        if parsed_args.format == 'json':
            text = json.dumps(_to_dict(done, paths), indent=2) + '\n'
        elif paths:
            text = ''.join(f'{path}\n' for path in paths)
        else:
            text = render.stream(done.files)
        self.app.stdout.write(text)
        _say(done)


def _say(done):
    """Tell the operator which resources pods can request."""
    for name, offered in done.by_layout.items():
        where = f' on nodes of {name}' if len(done.by_layout) > 1 else ''
        output.say(
            f'Strategy {done.strategy.value}; pods can ask{where} for '
            + ', '.join(f'{count} x {resource}' for resource, count
                        in offered.items()) + '.')
    for note in done.notes:
        output.say(note)


def _add_sharing(parser):
    parser.add_argument(
        '--replicas', metavar='N', type=int,
        help='offer each device N times '
             f'(at least {plugin.FEWEST})')
    parser.add_argument(
        '--sharing', choices=_values(plugin.Method),
        help='how replicas share a device '
             f'(default: {plugin.Method.TIME_SLICING.value})')
    parser.add_argument(
        '--resource', metavar='NAME', action='append', default=[],
        help='offer only this resource several times, such as '
             'nvidia.com/mig-1g.10gb; may be repeated (default: all)')
    parser.add_argument(
        '--rename', action='store_true',
        help='offer a shared resource as NAME.shared')
    parser.add_argument(
        '--allow-several', action='store_true',
        help='let a container ask for more than one replica, which gives '
             'it no greater share')


def _values(kinds):
    return [kind.value for kind in kinds]


def _nodes(machine, parsed_args):
    """Return a node for each requested layout."""
    names = parsed_args.name or [None]
    chosen = _chosen(machine, parsed_args.gpu)
    if not parsed_args.layout:
        if len(names) > 1:
            raise exception.InvalidValue(
                what='--name', value=', '.join(names),
                expected='the GPUs have one current layout: give one name, or '
                         '--layout')
        return [_node(machine, chosen, parsed_args, names[0] or _CURRENT,
                      None)]
    text, source = output.read_text(parsed_args.layout)
    document = layout_file.LayoutFile.parse(text, source)
    entries = [document.entry(name) for name in names]
    return [_node(machine, chosen, parsed_args, entry.name, entry)
            for entry in entries]


def _node(machine, chosen, parsed_args, name, entry):
    """Return a node with a layout; print where its GPUs differ from it."""
    now = [machine.current(gpu) if index in chosen else gpu
           for index, gpu in enumerate(machine.gpus)]
    gpus = kubernetes_node.wanted_by(now, entry, chosen)
    for item in gpus:
        for difference in layout_state.differences(item.gpu, item.wanted):
            # Of several layouts, the GPUs can match only one.
            if len(parsed_args.name) < 2:
                output.say(f'GPU {item.gpu.address} does not match the '
                           f'layout yet: {difference}')
    return kubernetes_node.Node(name, gpus)


def _chosen(machine, asked):
    """Return the indices of the chosen GPUs, ascending.

    Without a choice, these are all GPUs bound to NVIDIA's driver, because the
    device plugin finds no others.

    :raises HostUnusable: if one of the GPUs cannot be read.
    """
    if asked:
        addresses = {machine.gpu(text).address for text in asked}
    else:
        addresses = {gpu.address for gpu in machine.gpus
                     if not condition.is_away(gpu)}
        for gpu in machine.gpus:
            if gpu.address not in addresses:
                output.say(f'{machine.name(gpu)} is left out: '
                           + condition.obstacle(gpu))
    found = [index for index, gpu in enumerate(machine.gpus)
             if gpu.address in addresses]
    machine.reachable(machine.gpus[index] for index in found)
    return found


def _sharing(parsed_args, node, strategy):
    """Return the requested sharing; None for no sharing."""
    if parsed_args.replicas is None:
        for option, value in (('--sharing', parsed_args.sharing),
                              ('--resource', parsed_args.resource),
                              ('--rename', parsed_args.rename),
                              ('--allow-several', parsed_args.allow_several)):
            if value:
                raise exception.InvalidValue(
                    what=option, value=value,
                    expected='it has an effect only on replicas: give '
                             '--replicas too')
        return None
    method = plugin.Method(
        parsed_args.sharing or plugin.Method.TIME_SLICING)
    return plugin.shared(
        method, parsed_args.replicas, parsed_args.resource, node, strategy,
        parsed_args.rename, parsed_args.allow_several)


def _to_dict(done, paths):
    return {'strategy': done.strategy.value,
            'allocatable': (done.by_layout if len(done.by_layout) > 1
                            else done.allocatable),
            'notes': list(done.notes),
            'written': paths,
            'files': {file.name: file.content for file in done.files}}


def _write(directory, files):
    """Write the files.

    :returns: their paths.
    :raises InvalidValue: if the directory cannot be written to.
    """
    paths = []
    try:
        for file in files:
            paths.append(os.path.join(directory, file.name))
            os.makedirs(os.path.dirname(paths[-1]), exist_ok=True)
            with open(paths[-1], 'w', encoding='utf-8') as stream:
                stream.write(file.text)
    except OSError as error:
        raise exception.InvalidValue(
            what='--output', value=directory,
            expected=f'cannot be written: {error}') from error
    return paths
