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

"""``cyborg-gpu interference show``: measured slowdowns."""

from __future__ import annotations

from cyborg_gpu_driver.cmd.interference import answers


class ShowInterference(answers.Lister):
    """Show measured slowdowns, and draw them.

    Lists each application alone first, with nothing in Beside, and then the
    pairs.
    """

    brief = answers.BRIEF

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'file', metavar='FILE', nargs='?', default=answers.FILE,
            help='file of "interference measure"; - is standard input '
                 '(default: %(default)s)')
        answers.add_heat_map(parser)
        return parser

    def take_action(self, parsed_args):
        found = answers.read(parsed_args.file)
        answers.write_heat_map(parsed_args.heat_map, found)
        return answers.COLUMNS, answers.rows(found)
