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
        'List the GPUs and vGPUs that servers had, and the cleanups after '
        'them'),
    'check': (
        "Check that this host's GPUs, Cyborg and Nova fit together"),
    'doctor': (
        'Find problems of this host, and say what to do about them'),
    'exporter': (
        'Serve the metrics of this host to Prometheus'),
    'firstboot': (
        'Partition the GPUs of a bare-metal server as its layout says'),
    'gpu cordon': (
        'Keep new servers away from GPUs'),
    'gpu drain': (
        'Cordon GPUs, and list the servers that still have a part of them'),
    'gpu fabric': (
        'List the NVSwitch partitions of this host'),
    'gpu list': (
        'List the NVIDIA GPUs of this host'),
    'gpu map': (
        'Draw the layouts of all GPUs of this host side by side'),
    'gpu prepare': (
        'Make idle GPUs ready for their policy'),
    'gpu show': (
        'Show one GPU, with a picture of the slices in use'),
    'gpu uncordon': (
        'Offer GPUs to new servers again'),
    'health clear': (
        'Clear the recorded health problems of a GPU'),
    'health show': (
        "Show the health of this host's GPUs"),
    'instance create': (
        'Create a GPU instance, with a compute instance that spans it'),
    'instance destroy': (
        'Destroy an idle GPU instance with its compute instances'),
    'instance list': (
        'List the GPU instances of this host and their users'),
    'interference measure': (
        'Measure how much applications slow each other down'),
    'interference plan': (
        'Place applications on GPUs so that all end as early as possible'),
    'interference predict': (
        'Predict how long applications run together on one GPU'),
    'interference show': (
        'Show measured slowdowns, and draw them'),
    'kubernetes render': (
        'Write the Kubernetes configuration for GPU nodes like this host'),
    'layout apply': (
        'Apply a layout, and keep existing instances that are part of it'),
    'layout assert': (
        'Check whether a layout is in effect'),
    'layout checkpoint': (
        'Save the current layout of the GPUs, for layout restore'),
    'layout export': (
        'Write the current layout of the GPUs as a layout file'),
    'layout generate': (
        'Write a file with all sensible layouts for the GPUs of this host'),
    'layout list': (
        'List the layouts of a file, and which of them this host supports'),
    'layout plan': (
        'Show what applying a layout would change, and change nothing'),
    'layout restore': (
        'Restore GPUs after a reboot or a crash'),
    'nova config': (
        'Write the lines of nova.conf for vGPUs that Nova assigns itself'),
    'offer list': (
        'List what each GPU offers, and how much of it can be created now'),
    'report show': (
        'Show what the agent would report to Cyborg and Placement now'),
    'support-bundle': (
        'Write one archive with what a bug report needs'),
    'usage': (
        'Show who had which GPU, vGPU or slice from when to when'),
    'vgpu clean': (
        'Remove orphaned vGPUs'),
    'vgpu list': (
        'List the live vGPUs of this host and their owners'),
}
