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

"""The exceptions by which a simulated driver refuses an operation."""


class Refused(Exception):
    """An NVML call returns an error.

    The exception never leaves the simulator: the library returns ``code``
    (``nvmlReturn_t``) as the C function would.
    """

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class Waits(Exception):
    """The kernel does not return from a system call yet."""


class Unavailable(Exception):
    """The driver cannot create a vGPU on this function now.

    Each interface of the driver reports this with its own errno.
    """
