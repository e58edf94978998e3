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

"""Record what the steps in the ramdisk did in the history of Ironic's node.

Ironic's own entries say which steps a deployment or cleaning has, and why a
step failed, but not what a step did: Ironic drops the agent's result. Its
hooks after a step receive the result (``ironic.drivers.modules.agent_base``).
There are none for service steps. :func:`register` registers the hooks.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from ironic.conductor import utils
from ironic.drivers.modules import agent_base

from cyborg_gpu_driver.baremetal import steps
from cyborg_gpu_driver.baremetal.inventory import names

EVENT_TYPE = names.KEY
_INTERFACE = 'deploy'
_GPUS_MAX = 64
_TEXT_MAX = 255


def register() -> None:
    """Make Ironic call :func:`record` after each step of this driver."""
    agent_base.post_deploy_step_hook(_INTERFACE, names.APPLY_LAYOUT)(record)
    for name in steps.CLEAN_PRIORITIES:
        agent_base.post_clean_step_hook(_INTERFACE, name)(record)


def record(task: Any, command: Mapping[str, Any]) -> None:
    """Add a history entry for a finished step.

    :param task: of the conductor, with the node.
    :param command: the agent's result of the step. It is not trusted: a
        malformed part is left out, because an error here would fail the step.
    """
    kind = 'deploy' if task.node.deploy_step else 'clean'
    step = getattr(task.node, f'{kind}_step') or {}
    result = _mapping(command.get('command_result')).get(f'{kind}_result')
    utils.node_history_record(
        task.node, event=event(str(step.get('step')), result),
        event_type=EVENT_TYPE)


def event(step: str, result: Any) -> str:
    """Return the text of an entry: one line.

    ``apply_gpu_layout: layout halves; wrote /etc/...; GPU 0000:18:00.0:
    wanted 2 x 2g.12gb, mig_mode set now``
    """
    return f'{step}: ' + '; '.join(_parts(_mapping(result)))


def _parts(result) -> Iterator[str]:
    if 'layout' in result:
        yield f'layout {_text(result["layout"])}'
        yield 'wrote ' + (', '.join(map(_text, _list(result.get('staged'))))
                          or 'no file')
    gpus = [_mapping(item) for item in _list(result.get('gpus'))]
    for gpu in gpus:
        facts = ', '.join(
            f'{_text(name)} {_text(value)}' for name, value in gpu.items()
            if name != 'gpu' and isinstance(value, str | int | float))
        yield f'GPU {_text(gpu.get("gpu"))}' + (facts and f': {facts}')
    if not gpus:
        yield 'no GPU'


def _text(value):
    return ''.join(letter if letter.isprintable() else '?'
                   for letter in str(value)[:_TEXT_MAX])


def _list(value):
    return value[:_GPUS_MAX] if isinstance(value, list) else []


def _mapping(value):
    return value if isinstance(value, Mapping) else {}
