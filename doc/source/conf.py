# SPDX-License-Identifier: Apache-2.0

"""How Sphinx builds the documentation."""

from docutils import nodes
from docutils import statemachine
from docutils.parsers import rst

from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.metrics import definitions

extensions = [
    'cliff.sphinxext',
    'openstackdocstheme',
    'oslo_config.sphinxext',
    'reno.sphinxext',
]

project = 'cyborg_gpu_driver'
# Sphinx reads the variable by this name.
copyright = 'The cyborg_gpu_driver developers'  # noqa: A001
openstackdocs_auto_name = False
openstackdocs_auto_version = False

root_doc = 'index'
exclude_patterns = []
html_theme = 'openstackdocs'
pygments_style = 'native'
html_copy_source = False
add_function_parentheses = False

man_pages = [
    ('cli/index', 'cyborg-gpu', 'show and manage the NVIDIA GPUs of a host',
     '', 1),
    ('cli/openstack', 'openstack-gpu', 'the GPUs of an OpenStack cloud',
     '', 1),
]


class Generated(rst.Directive):
    """Write a definition list from the code: one of the keys below."""

    required_arguments = 1

    def run(self):
        """Return the definition list."""
        items = {
            'metrics-of-agent': map(_metric, definitions.METRICS),
            'metrics-of-hardware': map(_metric, definitions.SAMPLED),
            'labels': definitions.LABELS.items(),
            'reasons': ((reason.name, f'{reason.value}.')
                        for reason in request.Reason),
        }[self.arguments[0]]
        lines = [line for name, text in items
                 for line in (f'``{name}``', f'   {text}', '')]
        parent = nodes.Element()
        self.state.nested_parse(
            statemachine.StringList(lines, __file__), self.content_offset,
            parent)
        return parent.children


def _metric(metric):
    labels = ', '.join(f'``{label}``' for label in metric.labels)
    return (metric.full_name,
            f'*{metric.kind.value}*. {metric.help} Labels: {labels}.')


def setup(app):
    """Add the directive."""
    app.add_directive('generated', Generated)
