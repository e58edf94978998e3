# SPDX-License-Identifier: Apache-2.0

"""The boards' data, checked against public tables and itself."""

import math
import re

import pynvml
from oslotest import base

from cyborg_gpu_driver.simulator import files

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

    def test_every_file_names_its_sources(self):
        for model in self.models:
            text = (files.HERE / 'models' / f'{model.name}.yaml').read_text(
                encoding='utf-8')
            self.assertIn('\n# Sources:\n# - ', text, model.name)
            made_up = any(kind.type_id >= MADE_UP
                          for kind in model.vgpu_types)
            self.assertEqual(made_up, ' made' in text, model.name)

    def test_only_boards_without_a_listing_have_made_up_type_ids(self):
        for model in self.models:
            ids = [kind.type_id for kind in model.vgpu_types]
            self.assertEqual(model.name in NO_LISTING,
                             bool(ids) and min(ids) >= MADE_UP, model.name)

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
