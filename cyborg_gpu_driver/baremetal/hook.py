# SPDX-License-Identifier: Apache-2.0

"""The hook that Ironic's conductor runs at the end of an inspection.

Its name is ``nvidia-gpus`` in ``[inspector] hooks``. It sets on the node what
the collector of the same name found.
"""

from __future__ import annotations

from ironic import objects
from ironic.common import exception as ironic_exception
from ironic.conf import CONF
from ironic.drivers.modules.inspector.hooks import base
from oslo_log import log

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import inventory as baremetal_inventory
from cyborg_gpu_driver.baremetal import layout_sources
from cyborg_gpu_driver.baremetal import node as baremetal_node
from cyborg_gpu_driver.conf import baremetal

LOG = log.getLogger(__name__)


class NvidiaGpusHook(base.InspectionHook):
    """Sets traits and properties of a node from the facts of its GPUs.

    One object serves all inspections, several at a time, so it has no state.
    """

    def __init__(self):
        baremetal.register_opts(CONF)

    def preprocess(self, task, inventory, plugin_data):
        """Refuse unusable data before anything is changed.

        :raises HardwareInspectionFailure: with what is wrong in the data or in
            the layout files of the configuration.
        """
        _read(task.node, plugin_data)
        _files()

    def __call__(self, task, inventory, plugin_data):
        """Set the node's traits, properties and, if configured, its class.

        :raises HardwareInspectionFailure: as :meth:`preprocess`.
        """
        found = _read(task.node, plugin_data)
        if found is None:
            LOG.warning('Node %s: its GPUs are unknown, because the ramdisk '
                        'has no collector nvidia-gpus; the node is not '
                        'changed', task.node.uuid)
            return
        for address, reasons in found.unhealthy.items():
            LOG.warning('Node %s: GPU %s is unhealthy: %s', task.node.uuid,
                        address, '; '.join(reasons))
        _set(task, found, _files())


def _read(node, plugin_data):
    """Return what is known of a node's GPUs; None if nothing is known."""
    if baremetal_inventory.KEY not in plugin_data:
        return None
    try:
        return baremetal_inventory.parse(plugin_data[baremetal_inventory.KEY])
    except exception.DocumentError as error:
        raise ironic_exception.HardwareInspectionFailure(
            error=f'NVIDIA GPUs of node {node.uuid}: {error}') from error


def _files():
    """Return the operator's layouts."""
    try:
        return layout_sources.of_operator(CONF)
    except exception.GpuDriverError as error:
        raise ironic_exception.HardwareInspectionFailure(
            error=f'NVIDIA GPUs: {error}') from error


def _set(task, found, files):
    """Set the node's facts, and remember which traits this hook wrote.

    The properties are saved first, including the traits to remove. So if the
    hook is interrupted, no trait is mistaken for the operator's.
    """
    node = task.node
    current = set(objects.TraitList.get_by_node_id(
        task.context, node.id).get_trait_names())
    before = baremetal_node.written(node.properties, current)
    wanted = baremetal_node.traits(
        current, found, before, files, _templates(task.context))
    _say(node, wanted)
    removed = current.difference(wanted.traits)
    _set_properties(node, found, {*wanted.written, *removed})
    node.save()
    if current != set(wanted.traits):
        LOG.info('Node %s: traits of its GPUs are now %s', node.uuid,
                 ', '.join(wanted.written))
        objects.TraitList.create(task.context, node.id, wanted.traits)
    if removed:
        _set_properties(node, found, wanted.written)
        node.save()


def _say(node, wanted):
    for name, reason in wanted.refused.items():
        LOG.warning('Node %s: the layout of deploy template %s cannot be '
                    'used: %s', node.uuid, name, reason)
    if wanted.left_out:
        LOG.warning('Node %s: no room for the traits %s; a node has at most '
                    '%s', node.uuid, ', '.join(wanted.left_out),
                    baremetal_node.TRAITS_MAX)


def _set_properties(node, found, written):
    """Set the node's properties and, if configured, its resource class.

    :param written: traits that the next inspection may remove.
    """
    properties = {key: value for key, value in node.properties.items()
                  if key != baremetal_node.PROPERTY}
    suggested = baremetal_node.resource_class(found)
    if found.gpus or written:
        properties[baremetal_node.PROPERTY] = {
            **baremetal_node.summary(found),
            baremetal_node.TRAITS: sorted(written),
            'resource_class': suggested}
    node.properties = properties
    if (CONF[baremetal.GROUP].resource_class == baremetal.SET
            and suggested and not node.resource_class):
        node.resource_class = suggested


def _templates(context):
    """Return the layouts of deploy templates, by the template's name."""
    return {template.name: step['args'].get('layout')
            for template in objects.DeployTemplate.list(context)
            if baremetal_inventory.is_layout_trait(template.name)
            for step in template.steps
            if step['step'] == baremetal_inventory.APPLY_LAYOUT}
