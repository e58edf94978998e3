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
from cyborg_gpu_driver.partition import plan
from cyborg_gpu_driver.partition.layout import file as layout_file

_STDOUT = '-'
_CURRENT = 'current'


class RenderKubernetes(command.Command):
    """Write the Kubernetes files for GPU nodes like this host.

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
            '--name', metavar='NAME',
            help='entry of the layout file; may be left out if there is only '
                 'one. Without --layout, the name of the current layout '
                 f'(default: {_CURRENT})')
        parser.add_argument(
            '--gpu', metavar='GPU', action='append', default=[],
            help=f'a GPU that the node has, by {choice.WAYS}; may be '
                 'repeated (default: all)')
        parser.add_argument(
            '--strategy', choices=[kind.value for kind in plugin.Strategy],
            help='MIG strategy of all nodes (default: the simplest one that '
                 'offers everything in the layout)')
        parser.add_argument(
            '--replicas', metavar='N', type=int,
            help=f'offer each device N times (at least {plugin.FEWEST})')
        parser.add_argument(
            '--sharing', choices=[kind.value for kind in plugin.Method],
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
        node = _node(self.app.machine.for_changes(), parsed_args)
        strategy = (plugin.Strategy(parsed_args.strategy)
                    if parsed_args.strategy else plugin.suited(node))
        done = render.render(node, strategy,
                             _sharing(parsed_args, node, strategy))
        paths = ([] if parsed_args.output == _STDOUT
                 else _write(parsed_args.output, done.files))
        if parsed_args.format == 'json':
            text = json.dumps({
                'strategy': strategy.value, 'allocatable': done.allocatable,
                'notes': list(done.notes), 'written': paths,
                'files': done.files}, indent=2) + '\n'
        elif paths:
            text = ''.join(f'{path}\n' for path in paths)
        else:
            text = ''.join(f'---\n# {name}\n{render.dump(content)}'
                           for name, content in done.files.items())
        self.app.stdout.write(text)
        output.say(f'Strategy {strategy.value}; pods can ask for ' + ', '.join(
            f'{count} x {resource}' for resource, count
            in done.allocatable.items()) + '.')
        for note in done.notes:
            output.say(note)


def _node(machine, parsed_args):
    """Return the node; print where its GPUs differ from the layout."""
    chosen = _chosen(machine, parsed_args.gpu)
    entry = layout_file.LayoutFile.parse(
        *output.read_text(parsed_args.layout)).entry(
            parsed_args.name) if parsed_args.layout else None
    now = [machine.current(gpu) if index in chosen else gpu
           for index, gpu in enumerate(machine.gpus)]
    gpus = kubernetes_node.wanted_by(now, entry, chosen)
    for item in gpus:
        if not plan.plan(item.gpu, item.wanted).is_empty:
            output.say(f'GPU {item.gpu.address} does not match the layout '
                       f'yet: {item.wanted}')
    return kubernetes_node.Node(
        entry.name if entry else parsed_args.name or _CURRENT, gpus)


def _chosen(machine, asked):
    """Return the indices of the chosen GPUs, ascending.

    Without a choice, these are all GPUs bound to NVIDIA's driver, because the
    device plugin finds no others.
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
    return plugin.shared(
        plugin.Method(parsed_args.sharing or plugin.Method.TIME_SLICING),
        parsed_args.replicas, parsed_args.resource, node, strategy,
        parsed_args.rename, parsed_args.allow_several)


def _write(directory, files):
    """Write the files; return their paths."""
    paths = []
    try:
        os.makedirs(directory, exist_ok=True)
        for name, content in files.items():
            paths.append(os.path.join(directory, name))
            with open(paths[-1], 'w', encoding='utf-8') as stream:
                stream.write(render.dump(content))
    except OSError as error:
        raise exception.InvalidValue(
            what='--output', value=directory,
            expected=f'cannot be written: {error}') from error
    return paths
