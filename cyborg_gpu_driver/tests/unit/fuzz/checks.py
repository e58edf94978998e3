# SPDX-License-Identifier: Apache-2.0


"""What must hold for each reader, whatever its input.

Each function raises the error of the reader, unless it is a readable error of
this library. It raises AssertionError if the data that was read is not sound.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import posixpath
import re
import tempfile

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import prometheus
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.baremetal import layout_sources
from cyborg_gpu_driver.baremetal import node
from cyborg_gpu_driver.host import problems
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import functions
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.interference import guest
from cyborg_gpu_driver.nova.weighing import placement
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import names
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

ADDRESS = model.PciAddress.parse('0000:07:00.0')
_TRAIT = re.compile(r'CUSTOM_[A-Z0-9_]{1,248}', re.ASCII)
_RESOURCE_CLASS = re.compile(r'baremetal-gpu-[a-z0-9-]{1,66}', re.ASCII)


def hold(condition, about):
    """Raise AssertionError unless the condition is true."""
    if not condition:
        raise AssertionError(repr(about))


def attempt(action, *args):
    """Return the result, or None after an error of this library."""
    try:
        return action(*args)
    except exception.GpuDriverError as error:
        hold(str(error), error)
        return None


# Files that operators write

def layouts(text, gpus=()):
    """Read a layout file and its layout for each GPU."""
    file = attempt(layout_file.LayoutFile.parse, text, 'file')
    if file is None:
        return
    if file.entries:
        hold(file == layout_file.LayoutFile.parse(file.dump(), 'file'), text)
    for name in file.unreadable:
        hold(attempt(file.entry, name) is None, text)
    for entry in file.entries:
        for section in entry.sections:
            hold(isinstance(section.to_dict()['mig-enabled'], bool), section)
        attempt(file.entry, entry.name)
        for index, gpu in enumerate(gpus):
            str(attempt(entry.for_gpu, index, gpu))
        attempt(entry.for_host, gpus)
    attempt(file.entry)


def slowdowns(document):
    """Read the measured slowdowns of applications on one GPU."""
    found = attempt(published.parse, document)
    if found is not None:
        hold(found.slowdown('a', ['b']) > 0, document)


def extra_specs(specs):
    """Read what a flavor says about the choice of a GPU."""
    attempt(placement.wish, {
        key: str(value) for key, value in specs.items()}, 'flavor')


def utilization_of_gpus(document):
    """Read the answer of Prometheus to nova-scheduler."""
    try:
        found = prometheus.parse(document, ('Hostname', 'address'))
    except ValueError:
        return
    for gpu, value in found.items():
        hold(not math.isnan(value) and all(isinstance(part, str)
                                           for part in gpu), document)


def console(text):
    """Read what a guest prints about its runs."""
    report = guest.read(text, 'c0ffee')
    for run in report.runs:
        hold(run.seconds > 0 and run.problem.isprintable(), text)
        hold(0 <= run.exit_code <= 999 and len(run.problem) <= 200, text)


# Names and numbers

def words(text):
    """Read names of profiles, types and handles, addresses and numbers."""
    for parse in (names.ProfileName.parse, names.VgpuTypeName.parse,
                  model.PciAddress.parse):
        found = attempt(parse, text)
        if found is not None:
            hold(parse(str(found)) == found, text)
    for parse in (vgpu_name.mdev_type, vgpu_name.handle):
        found = attempt(parse, text)
        hold(found is None or '/' not in found and '..' not in found, text)
    attempt(pci.number, text, 'number')


class _Everywhere:
    """A kernel in which all files, names and links have the same content."""

    def __init__(self, data):
        self._data = data
        self._text = data.decode('utf-8', 'surrogateescape')
        self.paths = set()

    def open(self, path, _flags):
        self.paths.add(path)
        return 0

    def read(self, _descriptor, length):
        return self._data[:length]

    def close(self, descriptor):
        """Do nothing: no file was opened."""

    def listdir(self, path):
        self.paths.add(path)
        # Names in the kernel contain neither character.
        return [str(ADDRESS), *filter(None, self._text.replace(
            '\0', '').split('/'))]

    def readlink(self, path):
        self.paths.add(path)
        return self._text

    def stat(self, path):
        self.paths.add(path)


def tree(data):
    """Run each reader of sysfs when all that it reads is ``data``."""
    everywhere = _Everywhere(data)
    files = pci.Sysfs('/sys', os_module=everywhere)
    bus, mdevs = pci.PciBus(files), functions.MdevTree(files)
    found = problems.Problems()
    attempt(bus.functions, found)
    attempt(mdevs.live, found)
    for read in (bus.driver, bus.iommu_group, bus.numvfs,
                 mdevs.current_vgpu_type, mdevs.creatable_types):
        attempt(read, ADDRESS)
    attempt(bus.virtual_functions, ADDRESS, 2)
    attempt(mdevs.types, ADDRESS)
    for path in everywhere.paths:
        hold(path.startswith('/sys/') and posixpath.normpath(path) == path
             and '\0' not in path, path)


# What a ramdisk sends

def ramdisk(content):
    """Return the inventory that a ramdisk sends, or None if refused."""
    found = attempt(inventory.parse, content)
    if found is None:
        return None
    host = model.Host(found.gpus, found.driver_version, found.nvml_problem,
                      problems=found.problems)
    again = inventory.parse(json.loads(json.dumps(
        inventory.to_dict(host, {}))))
    hold(again.gpus == found.gpus, found)
    traits = node.traits(['CUSTOM_MINE'], found).traits
    hold('CUSTOM_MINE' in traits and len(traits) <= node.TRAITS_MAX, traits)
    for trait in traits:
        hold(_TRAIT.fullmatch(trait), trait)
    name = node.resource_class(found)
    hold(name is None or _RESOURCE_CLASS.fullmatch(name), name)
    json.dumps(node.summary(found), allow_nan=False).encode()
    return found


# What a cloud tells a server, as cloud-init writes it

def metadata(text, gpus=()):
    """Read cloud-init's file."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, 'instance-data.json')
        with open(path, 'w', encoding='utf-8',
                  errors='surrogatepass') as stream:
            stream.write(text)
        found = attempt(layout_sources.search, '', path)
    if not found:
        return
    hold(found.source.startswith(path), found)
    hold(isinstance(found.layout, str), found)
    entry = attempt(found.entry, gpus)
    if entry is not None:
        attempt(entry.for_host, gpus)


# Files that this library keeps. A file that is not refused is the same after
# the library writes it again.

def record_file(state_path):
    """``gpus/GPU.json``"""
    records = store.of(state_path)
    record = attempt(records.read, ADDRESS)
    if record is None:
        records.check()
        hold(store.Store(state_path).read(ADDRESS).is_of(ADDRESS), state_path)
        return
    records.put(ADDRESS, fixed=gpu_record.FixedVgpus(
        instances=frozenset({spec.MigInstanceSpec(
            model.Placement(0, 1), 1)})))
    records.put(ADDRESS, fixed=record.fixed)
    # The time that servers have had the GPU goes on.
    now = store.Store(state_path).read(ADDRESS)
    hold(dataclasses.replace(now, ledger=record.ledger) == record, record)
    hold(str(record.change) and record.owned_instances is not None, record)
    _parts(record)
    gpu_record.owned(record.claims)
    for entry in record.claims:
        hold(isinstance(entry.profile, str), entry)
        hold(isinstance(entry.placement, (model.Placement, type(None))),
             entry)
        audit.Audit(state_path).record(
            entry.gpu, 'bound', entry.handle, audit.of_claim(entry))


def _parts(record):
    """Use each part of a record."""
    if record.health is not None:
        conditions = record.health.conditions
        health.unhealthy_parts(conditions)
        hold(isinstance(health.judge(conditions).reasons, tuple), record)
        for item in conditions:
            # The form that people see.
            hold(isinstance(item.text, str), item)
            datetime.datetime.fromtimestamp(item.first,
                                            datetime.timezone.utc)
    if record.tenancy is not None:
        for seen in (None, cleaning.Seen((), 7), cleaning.Seen(('a',), 7)):
            hold(isinstance(cleaning.following(
                record.tenancy, seen).withheld, bool), record)
            hold(isinstance(cleaning.doubt(record.tenancy, seen), str),
                 record)
