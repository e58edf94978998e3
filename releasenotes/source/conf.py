# SPDX-License-Identifier: Apache-2.0

"""How Sphinx builds the release notes."""

extensions = ['openstackdocstheme', 'reno.sphinxext']

project = 'cyborg_gpu_driver Release Notes'
# Sphinx reads the variable by this name.
copyright = 'The cyborg_gpu_driver developers'  # noqa: A001
openstackdocs_auto_name = False
openstackdocs_auto_version = False

root_doc = 'index'
html_theme = 'openstackdocs'
html_copy_source = False
