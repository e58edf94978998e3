# SPDX-License-Identifier: Apache-2.0

"""Run one folder of the plug-in's tests, in a separate process.

Tempest has one configuration per process, and replacements in the plug-in
last as long as the process. ``TEMPEST_CONFIG_DIR`` and ``TEMPEST_CONFIG``
name the configuration.

usage: python -m ...tempest_run.worker CLOUD FOLDER DEVICE RESULT
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import unittest
from collections.abc import Iterator

from cyborg_tempest_plugin import plugin

from cyborg_gpu_driver.tests.integration import minicloud
from cyborg_gpu_driver.tests.integration.tempest_run import known
from cyborg_gpu_driver.tests.integration.tempest_run import plan
from cyborg_gpu_driver.tests.integration.tempest_run import recorder
from cyborg_gpu_driver.tests.integration.tempest_run import replace


def main(arguments: list[str]) -> int:
    """Run the tests and write their outcomes; return 0 in any case."""
    directory, folder, device, result = arguments
    replace.everything(minicloud.Minicloud(pathlib.Path(directory)),
                       plan.DEVICES[device])
    start, top = plugin.CyborgTempestPlugin().load_tests()
    tests = {recorder.name(test): test for test in _flat(
        unittest.TestLoader().discover(str(pathlib.Path(start, folder)),
                                       top_level_dir=top))}
    notes = recorder.Recorder(list(tests),
                              lambda line: print(line, flush=True))
    unittest.TestSuite(
        test for name, test in tests.items()
        if name not in known.TESTS or known.TESTS[name].asked).run(notes)
    pathlib.Path(result).write_text(json.dumps({
        'there': list(tests),
        'outcomes': {name: dataclasses.asdict(outcome) for name, outcome
                     in notes.outcomes.items()}}), encoding='utf-8')
    return 0


def _flat(suite) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from _flat(item)
        else:
            yield item


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
