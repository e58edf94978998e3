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

"""What each command does, for ``cyborg-gpu --help``.

tools/help-files writes this module, so that the help imports no command.
"""

SUMMARIES = {
    'audit list': (
        'List what servers were given, and what was done after them'),
    'check': (
        "Check that this host's GPUs, Cyborg and Nova fit together"),
    'config import': (
        "Make policies of the options of Cyborg's own driver and of Nova"),
    'doctor': (
        'Compare journal, hardware, Cyborg and Placement on this host'),
    'firstboot': (
        'Cut the GPUs of a bare-metal server into its layout'),
    'gpu list': (
        'List the NVIDIA GPUs of this host'),
    'gpu prepare': (
        'Make idle GPUs ready for what their policy says'),
    'gpu show': (
        'Show one GPU, with a picture of what lies where on it'),
    'health clear': (
        'Forget what made a GPU sick'),
    'health show': (
        "Show the health of this host's GPUs"),
    'instance create': (
        'Create a GPU instance, with a compute instance that spans it'),
    'instance destroy': (
        'Destroy an idle GPU instance with its compute instances'),
    'instance list': (
        'List the GPU instances of this host and what uses them'),
    'kubernetes render': (
        'Write what Kubernetes is to be told of GPU nodes like this host'),
    'layout apply': (
        'Bring a layout about, keeping what is right already'),
    'layout assert': (
        'Tell whether a layout is in effect: exit code 0 if it is, else 1'),
    'layout checkpoint': (
        'Remember how the GPUs are, for layout restore'),
    'layout export': (
        'Write how the GPUs are cut now as a layout file'),
    'layout generate': (
        'Write a file of all sensible layouts for the GPUs of this host'),
    'layout list': (
        'List the layouts of a file, and which of them suit this host'),
    'layout plan': (
        'Show what an apply would do, and do nothing'),
    'layout restore': (
        'Make again what a reboot or a crash has taken away'),
    'nova config': (
        'Write the lines of nova.conf for vGPUs that are left to Nova'),
    'offer list': (
        'List what each GPU offers, and how much of it can be made now'),
    'report show': (
        'Show what the agent would send to Cyborg and Placement now'),
    'vgpu clean': (
        "Remove vGPUs that are nobody's"),
    'vgpu list': (
        'List the live vGPUs of this host and whose they are'),
}
