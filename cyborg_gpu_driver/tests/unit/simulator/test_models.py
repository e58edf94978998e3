# SPDX-License-Identifier: Apache-2.0

"""The boards' data, checked against public tables and itself."""

import math
import re

import pynvml
from oslotest import base

from cyborg_gpu_driver.simulator import files

DEVICES = {
    'a10': '2236', 'a100-40': '20b0', 'a100-40-pcie': '20f1',
    'a100-80': '20b2', 'a100-80-pcie': '20b5', 'a16': '25b6', 'a2': '25b6',
    'a30': '20b7', 'a40': '2235', 'a800': '20f3',
    'b200': '2901', 'b300': '3182', 'gb200': '2941', 'gb300': '31c2',
    'gh200': '2342', 'h100-80': '2330', 'h100-96': '2339',
    'h100-nvl': '2321', 'h100-pcie': '2331', 'h20': '2329',
    'h200-141': '2335', 'h200-nvl': '233b', 'h800': '2324', 'l20': '26ba',
    'l4': '27b8', 'l40': '26b5', 'l40s': '26b9', 'rtx-6000-ada': '26b1',
    'rtx-a6000': '2230', 'rtx-pro-6000': '2bb5', 't4': '1eb8',
    'v100': '1db6', 'v100-sxm2-16': '1db1', 'v100-sxm2-32': '1db5'}
"""PCI ids, from the README of NVIDIA's open kernel modules and pci.ids."""

TYPES = {
    'a10': {588: 'A10-1B', 590: 'A10-1Q', 594: 'A10-6Q', 597: 'A10-24Q',
            598: 'A10-1A', 605: 'A10-24A', 610: 'A10-4C', 614: 'A10-24C'},
    'a100-40': {457: 'A100X-4C', 462: 'A100X-40C', 463: 'A100X-1-5C',
                464: 'A100X-2-10C', 467: 'A100X-7-40C',
                704: 'A100X-1-5CME'},
    'a100-40-pcie': {468: 'A100-4C', 470: 'A100-8C', 473: 'A100-40C',
                     474: 'A100-1-5C', 478: 'A100-7-40C',
                     706: 'A100-1-5CME'},
    'a100-80': {615: 'A100DX-4C', 618: 'A100DX-16C', 621: 'A100DX-80C',
                622: 'A100DX-1-10C', 624: 'A100DX-3-40C',
                626: 'A100DX-7-80C', 705: 'A100DX-1-10CME',
                1057: 'A100DX-1-20C'},
    'a100-80-pcie': {692: 'A100D-4C', 698: 'A100D-80C',
                     699: 'A100D-1-10C', 703: 'A100D-7-80C',
                     707: 'A100D-1-10CME',
                     1054: 'A100D-1-20C'},
    'a16': {709: 'A16-1B', 711: 'A16-1Q', 715: 'A16-16Q', 716: 'A16-1A',
            720: 'A16-16A', 721: 'A16-4C', 723: 'A16-16C'},
    'a2': {742: 'A2-1B', 744: 'A2-1Q', 748: 'A2-16Q', 749: 'A2-1A',
           753: 'A2-16A', 754: 'A2-4C', 756: 'A2-16C'},
    'a30': {684: 'A30-4C', 688: 'A30-24C', 689: 'A30-1-6C',
            691: 'A30-4-24C', 708: 'A30-1-6CME',
            1052: 'A30-2-12CME'},
    'a40': {555: 'A40-1B', 556: 'A40-2B', 557: 'A40-1Q', 566: 'A40-48Q',
            567: 'A40-1A', 576: 'A40-48A', 581: 'A40-4C', 587: 'A40-48C'},
    'a800': {994: 'A800DX-1-10CME', 995: 'A800DX-1-10C',
             999: 'A800DX-7-80C', 1058: 'A800DX-1-20C'},
    'b200': {2151: 'B200X-1-23CME', 2152: 'B200X-1-23C',
             2157: 'B200X-7-180C'},
    'b300': {2258: 'B300X-1-34C', 2259: 'B300X-1-34CME',
             2264: 'B300X-7-269C'},
    'h100-80': {1130: 'H100XM-1-10CME', 1132: 'H100XM-1-20C',
                1136: 'H100XM-7-80C'},
    'gh200': {1196: 'GH200-1-12CME', 1202: 'GH200-7-96C'},
    'h100-96': {1291: 'H100XL-1-12CME', 1293: 'H100XL-1-24C',
                1297: 'H100XL-7-94C'},
    'h100-nvl': {1061: 'H100L-1-12CME', 1063: 'H100L-1-24C',
                 1067: 'H100L-7-94C'},
    'h100-pcie': {821: 'H100-1-10C', 825: 'H100-7-80C',
                  993: 'H100-1-10CME', 1059: 'H100-1-20C'},
    'h20': {1397: 'H20-1-12CME', 1399: 'H20-1-24C', 1403: 'H20-7-96C'},
    'h200-141': {1413: 'H200X-1-18CME', 1414: 'H200X-1-18C',
                 1419: 'H200X-7-141C', 1428: 'H200X-141C'},
    'h200-nvl': {1429: 'H200-1-18CME', 1431: 'H200-1-35C',
                 1435: 'H200-7-141C'},
    'h800': {1276: 'H800XM-1-10CME', 1278: 'H800XM-1-20C',
             1282: 'H800XM-7-80C'},
    'l40s': {1145: 'L40S-1B', 1147: 'L40S-1Q', 1156: 'L40S-48Q',
             1157: 'L40S-1A', 1166: 'L40S-48A'},
    'rtx-6000-ada': {941: 'RTX6000-Ada-1Q', 950: 'RTX6000-Ada-48Q'},
    'rtx-a6000': {522: 'RTXA6000-1B', 524: 'RTXA6000-1Q',
                  533: 'RTXA6000-48Q', 543: 'RTXA6000-48A',
                  548: 'RTXA6000-4C', 554: 'RTXA6000-48C'},
    'rtx-pro-6000': {1518: 'DC-2B', 1519: 'DC-3Q', 1546: 'DC-1-2Q',
                     1561: 'DC-1-24Q', 1587: 'DC-4-96C'},
    't4': {222: 'T4-1B', 224: 'T4-2B4', 225: 'T4-1A', 230: 'T4-1Q',
           234: 'T4-16Q', 319: 'T4-4C', 321: 'T4-16C'},
    'v100': {180: 'V100D-1Q', 185: 'V100D-32Q', 191: 'V100D-32A',
             192: 'V100D-1B', 218: 'V100D-2B4', 314: 'V100D-32C'},
    'v100-sxm2-16': {116: 'V100X-1Q', 120: 'V100X-16Q', 125: 'V100X-16A',
                     162: 'V100X-2B', 221: 'V100X-2B4', 304: 'V100X-16C'},
    'v100-sxm2-32': {194: 'V100DX-1Q', 199: 'V100DX-32Q', 205: 'V100DX-32A',
                     207: 'V100DX-2B', 219: 'V100DX-2B4',
                     318: 'V100DX-32C'},
}
"""The first and last id of each series in a public listing, and of MIG-backed
types in g_vgpu_resman_specific.h of NVIDIA's open kernel modules."""

NO_LISTING = {'l20', 'l4', 'l40'}
MADE_UP = 9000
"""Type ids from this number on are the simulator's own."""

NAME = re.compile(
    r'[A-Z]+[0-9]*[A-Z]*(?:-Ada)?(?:-(?P<slices>\d))?-(?P<gb>\d+)'
    r'(?P<series>[ABCQ])(?P<suffix>ME|4)?', re.ASCII)
CLASSES = {'A': 'NVS', 'B': 'NVS', 'C': 'Compute', 'Q': 'Quadro'}
MOST = 32
"""vGPUs of one size on a GPU that is not in MIG mode."""
FEWER = {'H200X-8C': 16, 'H200-8C': 16}
"""The vGPU guide's maxima where the memory would hold more."""
GRAPHICS = 0x2


class ModelsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.models = [files.load_model(name)
                       for name in files.model_names()]

    def test_every_board_is_the_one_it_says(self):
        self.assertEqual(DEVICES, {
            model.name: model.device for model in self.models})

    def test_every_file_names_its_sources(self):
        for model in self.models:
            text = (files.HERE / 'models' / f'{model.name}.yaml').read_text(
                encoding='utf-8')
            self.assertIn('\n# Sources:\n# - ', text, model.name)
            made_up = any(kind.type_id >= MADE_UP
                          for kind in model.vgpu_types)
            self.assertEqual(made_up, ' made' in text, model.name)

    def test_type_ids_are_those_of_public_listings(self):
        for model in self.models:
            kinds = {kind.type_id: kind.name for kind in model.vgpu_types}
            listed = TYPES.get(model.name, {})
            self.assertEqual(listed, {
                number: kinds.get(number) for number in listed}, model.name)
            self.assertEqual(model.name in NO_LISTING,
                             bool(kinds) and min(kinds) >= MADE_UP,
                             model.name)

    def test_profiles_are_those_of_public_listings(self):
        """``nvidia-smi mig -lgip`` of a B200: NVIDIA/mig-parted#166, #187."""
        model = files.load_model('b200')
        self.assertEqual({
            '1g.23gb': (19, 7, 18, 2, 1, 1), '1g.23gb+me': (
                20, 1, 18, 2, 1, 1),
            '1g.45gb': (15, 4, 30, 2, 1, 1), '2g.45gb': (14, 3, 36, 4, 2, 2),
            }, {item.name: (item.profile_id, item.max_instances,
                            item.multiprocessors, item.copy_engines,
                            item.decoders, item.jpeg)
                for item in model.mig.profiles if item.slices < 3})

    def test_no_two_types_share_an_id_or_a_name(self):
        kinds = [kind for model in self.models for kind in model.vgpu_types]
        for field in ('type_id', 'name'):
            found = [getattr(kind, field) for kind in kinds]
            self.assertEqual(len(found), len(set(found)))

    def test_names_say_what_a_type_is(self):
        for model in self.models:
            for kind in model.vgpu_types:
                name = NAME.fullmatch(kind.name)
                self.assertIsNotNone(name, kind.name)
                self.assertEqual(
                    (1024 * int(name['gb']), CLASSES[name['series']]),
                    (kind.framebuffer_mib, kind.vgpu_class), kind.name)
                self.assertEqual(name['slices'] is None,
                                 kind.profile_id is None, kind.name)
                if kind.profile_id is None:
                    continue
                profile = model.mig.by_id(kind.profile_id)
                self.assertEqual(
                    (profile.slices, profile.name.endswith('+me')),
                    (int(name['slices']), name['suffix'] == 'ME'),
                    kind.name)

    def test_time_sliced_maxima_follow_from_the_memory(self):
        for model in self.models:
            kinds = [kind for kind in model.vgpu_types
                     if kind.profile_id is None]
            if not kinds:
                continue
            whole = max(kind.framebuffer_mib for kind in kinds)
            for kind in kinds:
                expected = FEWER.get(kind.name, min(
                    MOST, whole // kind.framebuffer_mib))
                self.assertEqual(expected, kind.max_instances, kind.name)
            # The nominal size, such as 94 GB, is close to the real memory.
            self.assertLess(0.9 * whole, model.memory_mib, model.name)
            self.assertLess(model.memory_mib, 1.05 * whole, model.name)

    def test_backed_maxima_follow_from_the_profiles(self):
        for model in self.models:
            for kind in model.vgpu_types:
                if kind.profile_id is None:
                    continue
                profile = model.mig.by_id(kind.profile_id)
                self.assertEqual(profile.max_instances * kind.per_instance,
                                 kind.max_instances, kind.name)
                size = int(re.search(r'\.(\d+)gb', profile.name)[1])
                self.assertEqual(size * 1024 // kind.framebuffer_mib,
                                 kind.per_instance, kind.name)
                if any(other.capabilities & GRAPHICS
                       for other in model.mig.profiles):
                    self.assertTrue(profile.capabilities & GRAPHICS)

    def test_every_vgpu_has_a_function_to_lie_on(self):
        for model in self.models:
            if model.totalvfs:
                for kind in model.vgpu_types:
                    self.assertLessEqual(kind.max_instances, model.totalvfs,
                                         model.name)
            else:
                self.assertIn(model.architecture, (
                    pynvml.NVML_DEVICE_ARCH_VOLTA,
                    pynvml.NVML_DEVICE_ARCH_TURING))

    def test_instances_fit_the_grid_and_the_engines(self):
        for model in self.models:
            for profile in model.mig.profiles if model.mig else ():
                place = (model.name, profile.name)
                end = count = 0
                for start in profile.starts:
                    if start >= end:
                        end, count = start + profile.size, count + 1
                self.assertLessEqual(profile.max_instances, count, place)
                media = '+me' in profile.name
                self.assertEqual(1 if media else count,
                                 profile.max_instances, place)
                for engine in ('decoders', 'encoders', 'jpeg', 'ofa'):
                    self.assertLessEqual(
                        profile.max_instances * getattr(profile, engine),
                        model.mig.engines(engine), place)
                self.assertLessEqual(
                    profile.max_instances * profile.multiprocessors,
                    model.multiprocessors, place)

    def test_profile_names_follow_from_the_memory(self):
        # As NVIDIA's go-nvlib makes them (mig_profile.go).
        for model in self.models:
            for profile in model.mig.profiles if model.mig else ():
                eighths = math.ceil(
                    8 * profile.memory_mib / model.memory_mib) / 8
                whole = math.ceil(model.memory_mib / 1024)
                self.assertEqual(
                    f'{profile.slices}g.{math.floor(eighths * whole + 0.5)}'
                    'gb', re.match(r'[^+-]+', profile.name)[0], model.name)
