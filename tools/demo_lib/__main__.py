# SPDX-License-Identifier: Apache-2.0


"""``tools/demo`` runs this module: the demonstration."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time

from demo_lib import cloud
from demo_lib import database
from demo_lib import operator
from demo_lib import screen
from demo_lib import story

_HOST = 'compute1'
_DRIVER = 'cyborg_gpu_driver'
_NEXT = """
What next?
   .venv-demo/bin/cyborg-gpu --simulate dgx-a100-80 gpu map
      the GPUs of another simulated host; doc/source/demo.rst has more
   doc/source/admin/modes.rst
      which mode is right for your servers
   doc/source/install/index.rst
      how to install it on a GPU host
"""


def main() -> int:
    """Run the demonstration.

    :returns: 0 if the demonstration passes. Otherwise 1; then the databases,
        configuration and logs are kept, and their directory is printed.
    """
    began = time.monotonic()
    directory = tempfile.mkdtemp(prefix='cyborg-gpu-demo-')
    problem = None
    try:
        _run(directory, screen.Screen())
    except KeyboardInterrupt:
        problem = 'interrupted'
    except Exception as error:
        problem = f'{type(error).__name__}: {error}'
    if problem is None:
        shutil.rmtree(directory, ignore_errors=True)
        print(_NEXT)
        print('demo: passed in %.0f s' % (time.monotonic() - began))
        return 0
    print(f'\nLogs, databases and configuration are in {directory}')
    print(f'demo: FAILED: {problem}')
    return 1


def _run(directory, output):
    output.heading('The released Placement and Cyborg start')
    output.line("The services' own commands create their databases "
                '(half a minute).')
    templates = database.Templates(directory)
    templates.make()
    running = cloud.Cloud(
        directory, templates, _HOST, [_DRIVER], _configuration(directory),
        log=True)
    try:
        output.line('Placement API         '
                    + running.placement_service.url)
        output.line('Cyborg API            ' + running.cyborg_service.url)
        output.line('Cyborg conductor and agent, without a message broker')
        story.Story(running, operator.Operator(running.config_path),
                    output).tell()
    finally:
        running.stop()


def _configuration(directory):
    return {
        **story.CONFIGURATION,
        'DEFAULT': {'log_file': os.path.join(directory, 'services.log'),
                    'use_stderr': False},
        # The story shows what each report does.
        'gpu': {**story.CONFIGURATION['gpu'], 'simulate': story.MACHINE,
                'clean_poll_interval': 0,
                'simulate_state': os.path.join(directory, 'hardware.json'),
                'state_path': os.path.join(directory, 'gpu')}}


if __name__ == '__main__':
    sys.exit(main())
