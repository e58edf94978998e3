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

"""How a simulated driver says no."""


class Refused(Exception):
    """An NVML call answers with an error.

    Never leaves the simulator: the library returns ``code``
    (``nvmlReturn_t``) as the C function would.
    """

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class Waits(Exception):
    """The kernel does not return from a system call yet."""


class Unavailable(Exception):
    """The driver cannot make a vGPU there now. Each face of it has its own
    errno for that.
    """
