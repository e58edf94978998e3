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

"""What a build of the package leaves out; setup.cfg names the command."""

import os

from setuptools.command import build_py

CLONE_ONLY = frozenset({'demo', 'tests'})
"""Packages that only a clone of the repository uses: more than half of all
files. The hardware check is not among them: ``cyborg-gpu support-bundle``
contains what it writes, on hosts without a clone."""


class BuildPy(build_py.build_py):
    """Builds the modules of a wheel without those of ``CLONE_ONLY``."""

    command_name = 'build_py'

    def finalize_options(self):
        super().finalize_options()
        self.packages = [name for name in self.packages or ()
                         if not _is_clone_only(name.split('.'))]

    def find_data_files(self, package, src_dir):
        return [path for path in super().find_data_files(package, src_dir)
                if not _is_clone_only(path.split(os.sep))]


def _is_clone_only(parts):
    return (len(parts) > 1 and parts[0] == 'cyborg_gpu_driver'
            and parts[1] in CLONE_ONLY)
