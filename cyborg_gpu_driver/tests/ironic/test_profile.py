# SPDX-License-Identifier: Apache-2.0

"""Bare-metal profiles on the released Ironic, with simulated machines."""

from cyborg_gpu_driver.tests.ironic import profile_case

_SLICES = [{'gpu': '1g.10gb', 'count': 7}]
_OTHERS = [{'gpu': '3g.40gb', 'count': 2}]
_FLAVOR = {'name': 'gpu.metal', 'vcpus': 96, 'ram': 1048576, 'disk': 1000}


class TemplateTest(profile_case.ProfileCase):

    def test_it_is_made_once_and_changed(self):
        key = ('deploy template', self.trait)
        rows, _ = self.create(_SLICES, '--dry-run')
        self.assertEqual(('create', 'planned'),
                         (rows[key]['Action'], rows[key]['Result']))
        self.assertIsNone(self.template())
        rows, errors = self.create(_SLICES, answer='n', code=1)
        self.assertIn('Nothing was changed', errors)
        self.assertIsNone(self.template())
        rows, _ = self.create(_SLICES, answer='y')
        self.assertEqual('done', rows[key]['Result'])
        (step,) = self.template().steps
        self.assertEqual({
            'interface': 'deploy', 'step': 'apply_gpu_layout', 'priority': 65,
            'args': {'layout': {self.name: [{
                'devices': 'all', 'mig-enabled': True,
                'mig-devices': {'1g.10gb': 7}}]}}}, step)

        rows, errors = self.create(_SLICES)
        self.assertIn('There is nothing to do', errors)
        self.assertNotIn(key, rows)

        _, errors = self.create(_OTHERS, answer='n', code=1)
        self.assertRegex(errors, r'update deploy template \S+ \(steps: .*'
                         '"1g.10gb": 7.* -> .*"3g.40gb": 2')
        self.create(_OTHERS, '--yes')
        (step,) = self.template().steps
        self.assertEqual({'3g.40gb': 2}, step['args']['layout'][self.name][0][
            'mig-devices'])

    def test_that_of_others_stays(self):
        steps = [{'interface': 'bios', 'step': 'factory_reset', 'args': {},
                  'priority': 150}]
        self.baremetal.create_deploy_template(name=self.trait, steps=steps)
        rows, _ = self.create(_SLICES, '--yes', code=1)
        ((_, row),) = rows.items()
        self.assertEqual('refuse', row['Action'])
        self.assertIn('it was not created by this command', row['Change'])
        self.assertIn('bios.factory_reset {} at 150', row['Change'])
        self.assertEqual(steps, self.template().steps)
        self.create(_SLICES, '--yes', '--adopt')
        self.assertEqual('apply_gpu_layout', self.template().steps[0]['step'])
        self.create(_OTHERS, '--yes')


class FlavorTest(profile_case.ProfileCase):

    def create_flavor(self, *arguments, **kwargs):
        return self.create(_SLICES, '--yes', *arguments, flavors=[
            {**_FLAVOR, 'profile': self.name}], **kwargs)

    def test_it_is_made_once(self):
        rows, _ = self.create_flavor()
        row = rows['flavor', 'gpu.metal']
        self.assertEqual(('create', 'done'), (row['Action'], row['Result']))
        self.assertIn(f'96 vCPU, 1048576 MiB, 1000 GiB, resources:'
                      f'{self.placement_class}=1 ', row['Change'])
        (flavor,) = self.nova.flavors
        self.assertEqual({
            f'resources:{self.placement_class}': '1', 'resources:VCPU': '0',
            'resources:MEMORY_MB': '0', 'resources:DISK_GB': '0',
            'trait:CUSTOM_GPU_HEALTHY': 'required',
            f'trait:{self.trait}': 'required'}, flavor['extra_specs'])
        self.assertEqual((96, 1048576, 1000, True), (
            flavor['vcpus'], flavor['ram'], flavor['disk'],
            flavor['os-flavor-access:is_public']))
        _, errors = self.create_flavor()
        self.assertIn('There is nothing to do', errors)
        self.assertEqual([flavor], self.nova.flavors)

    def test_one_of_others_is_left(self):
        self.nova.flavors.append({
            'id': 'x', 'name': 'gpu.metal', 'vcpus': 1, 'ram': 1, 'disk': 1,
            'extra_specs': {}, 'description': None,
            'os-flavor-access:is_public': True})
        rows, _ = self.create_flavor(code=1)
        self.assertEqual('refuse', rows['flavor', 'gpu.metal']['Action'])
        self.assertIsNone(self.template())


class NodesTest(profile_case.ProfileCase):

    def test_who_can_take_it(self):
        can, cannot = self.node('hgx-h100'), self.node('t4x4')
        blank = self.node()
        stranger = self.node(resource_class='another')
        self.baremetal.add_node_trait(stranger, 'CUSTOM_GPU_COUNT_8')
        plain = self.node(resource_class='another')
        rows, errors = self.create(_SLICES, '--yes')
        told = {name: (row['Action'], row['Change'], row['Result'])
                for (kind, name), row in rows.items() if kind == 'node'}
        self.assertEqual(
            ('update', 'can take it; not now: it is manageable; it lacks the '
             f'trait {self.trait}', 'done'), told[can])
        self.assertRegex(told[cannot][1],
                         '^cannot take it: none of .* supports MIG: Tesla T4')
        self.assertEqual(
            ('', 'cannot take it: it has not been inspected', ''),
            told[blank])
        self.assertEqual(
            ('', 'cannot take it: its resource class is CUSTOM_ANOTHER, not '
             f'{self.placement_class}; it has not been inspected', ''),
            told[stranger])
        self.assertNotIn(plain, told)
        self.assertRegex(errors, r'\d+ nodes are of another resource class')
        # The node keeps the traits of the inspection.
        self.assertLessEqual({self.trait, 'CUSTOM_GPU_ARCH_HOPPER'},
                             set(self.traits(can)))
        for name in (cannot, blank, stranger, plain):
            self.assertNotIn(self.trait, self.traits(name))

        self.change(can, 'provide', 'available')
        rows, errors = self.create(_SLICES, '--yes')
        self.assertIn('There is nothing to do', errors)
        self.assertEqual('can take it', rows['node', can]['Change'])
