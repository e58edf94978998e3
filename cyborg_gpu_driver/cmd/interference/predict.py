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

"""``cyborg-gpu interference predict``: run times on a shared GPU."""

from __future__ import annotations

from cyborg_gpu_driver.cmd.interference import answers
from cyborg_gpu_driver.cmd.output import terminal

_COLUMNS = ('Application', 'Alone', 'Slowdown', 'End', 'Fit')


class PredictInterference(answers.Lister):
    """Predict how long applications run together on one GPU.

    Slowdown applies while all of the applications run: 1 plus what each other
    one adds. End is when the application ends, in seconds; the remaining ones
    then run faster.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        answers.add_jobs(parser)
        return parser

    def take_action(self, parsed_args):
        found = answers.read(parsed_args.file)
        jobs = answers.jobs(found, parsed_args.application,
                            parsed_args.memory)
        predictor = answers.predictor(found, parsed_args.memory)
        ends = predictor.ends(jobs)
        terminal.say('They do not fit together on one GPU.'
                     if answers.rounded(max(ends)) is None
                     else f'All have ended after {max(ends):.1f} s.')
        return _COLUMNS, [
            (job.application, round(job.seconds, 3),
             answers.shown(slowdown), answers.shown(end),
             answers.outcome(end))
            for job, slowdown, end in zip(
                jobs, predictor.slowdowns(jobs), ends, strict=True)]
