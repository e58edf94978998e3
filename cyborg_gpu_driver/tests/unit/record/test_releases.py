# SPDX-License-Identifier: Apache-2.0

"""The records that releases have written, in tests/data/records.

Each release adds a directory and changes none. The servers of a host keep
their GPUs through every upgrade and downgrade, because each release reads
these files and writes back what it does not know.
"""

import json
import os
import pathlib
import shutil

from cyborg_gpu_driver import durable
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.record import test_store

DATA = pathlib.Path(__file__).resolve().parents[2] / 'data' / 'records'
# The GPU of each kind of record.
GPUS = {'cordon': '0000:31:00.0', 'elastic': '0000:07:00.0',
        'fixed': '0000:16:00.0', 'group': '0000:18:00.0',
        'health': '0000:4b:00.0', 'layout': '0000:07:00.0',
        'slice': '0000:31:00.0', 'whole': '0000:c1:00.0'}
# The parts of records, at every level.
PARTS = {'claims', 'cordons', 'health', 'conditions', 'layout', 'change',
         'before', 'board', 'nvlink', 'groups', 'tenancy'}


def with_later_fields(content):
    """Return content with an unknown field in each of its parts."""
    if isinstance(content, list):
        return [with_later_fields(item) for item in content]
    if not isinstance(content, dict):
        return content
    return {**{name: with_later_fields(item) if name in PARTS else item
               for name, item in content.items()}, 'later': [1]}


class ReleaseTest(test_store.StoreCase):

    def check(self, change):
        """Write each record with a change of this release, and undo that."""
        paths = sorted(DATA.glob('*/*.json'))
        self.assertGreaterEqual(len(paths), len(GPUS))
        for path in paths:
            address = model.PciAddress.parse(GPUS[path.stem])
            target = self.records.path(address)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(path, target)
            before = self.content(target)
            if change(before) != before:
                before = change(before)
                durable.write(target, store.KIND, store.VERSION, before)
            records = self.again()
            records.check()
            cordons = records.read(address).cordons
            records.put(address, cordons=cordon.added(
                cordons, cordon.Cordon(cordon.Source.OPERATOR, 1.0)))
            records.put(address, cordons=cordons)
            after = self.content(target)
            # The store counts hours at each write.
            before.pop('ledger', None), after.pop('ledger', None)
            self.assertEqual(before, after, path)
        self.assertNotIn('moved', self.log.output)

    def content(self, path):
        return durable.read(path, store.KIND, store.VERSION)

    def test_all_stays(self):
        self.check(lambda content: content)

    def test_what_only_a_later_release_knows_stays(self):
        self.check(with_later_fields)

    def test_every_part_is_in_a_record(self):
        written = {name for path in DATA.glob('*/*.json')
                   for name in json.loads(path.read_text())['content']}
        missing = {field for field in codec._hints(gpu_record.GpuRecord)
                   if field not in written}
        self.assertEqual({'claims_lost'}, missing)
