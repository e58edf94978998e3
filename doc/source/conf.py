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

"""How Sphinx builds the documentation."""

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
