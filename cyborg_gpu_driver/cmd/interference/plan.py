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

"""``cyborg-gpu interference plan``: which application on which GPU."""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.interference import answers
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import terminal
from cyborg_gpu_driver.interference import arrangement

_COLUMNS = ('Placement', 'GPU', 'Applications', 'End', 'Makespan')
_GPUS_MAX = 64
_JOBS_MAX = 200


class PlanInterference(answers.Lister):
    """Place applications on GPUs so that all end as early as possible.

    Compares the placement with the least predicted makespan to pack (the most
    memory first, onto the fullest GPU where it fits) and spread (the longest
    first, onto the GPU with the least to do). With up to 10 applications, that
    placement is optimal; with more, the command says how far from the optimum
    it can be.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        answers.add_jobs(parser)
        parser.add_argument(
            '--gpus', metavar='NUMBER', required=True,
            type=answers.number(1, _GPUS_MAX),
            help='number of GPUs, or of slices of one size')
        return parser

    def take_action(self, parsed_args):
        if len(parsed_args.application) > _JOBS_MAX:
            raise exception.InvalidValue(
                what='number of applications',
                value=len(parsed_args.application),
                expected=f'expected at most {_JOBS_MAX}')
        found = answers.read(parsed_args.file)
        jobs = answers.jobs(found, parsed_args.application,
                            parsed_args.memory)
        predictor = answers.predictor(found, parsed_args.memory)
        plans = arrangement.compare(jobs, parsed_args.gpus, predictor)
        terminal.say(_verdict(plans[0]))
        return _COLUMNS, [
            (plan.name, index,
             columns.Names([job.application for job in group]),
             answers.shown(predictor.makespan(group)),
             answers.shown(plan.makespan))
            for plan in plans for index, group in enumerate(plan.groups)]


def _verdict(plan):
    if answers.rounded(plan.bound) is None:
        return 'No placement fits.'
    if answers.rounded(plan.makespan) is None:
        return 'No placement that fits was found.'
    if plan.is_best:
        return 'No other placement is predicted to end earlier.'
    return (f'No placement is predicted to end before {plan.bound:.1f} s; '
            f'this one takes {plan.makespan / plan.bound:.2f} times as long.')
