# SPDX-License-Identifier: Apache-2.0

"""The playbook of contrib/ansible on a clean Debian host of a real cloud.

mmdebstrap makes the host, with the released services of the cloud. They are
kept in the virtual environment. What a test changes is in memory.
"""

from __future__ import annotations

import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

import yaml

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.installers import base as installers

BIN = pathlib.Path(sys.executable).parent
SUITE = 'bookworm'
PACKAGES = ('ca-certificates,gcc,libc6-dev,python3-dev,python3-packaging,'
            'python3-venv,sudo,kmod,initramfs-tools,mariadb-server,'
            'rabbitmq-server,systemd')
# The tree is $1. A uWSGI that uv built earlier has the Python of the tests.
SERVICES = """
set -e
mkdir "$1/uv"
mount --bind "$(uv cache dir)" "$1/uv"
cp "$(command -v uv)" "$1/usr/bin"
cp requirements.txt "$1/opt"
cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs"
install() {
    chroot "$1" env UV_CACHE_DIR=/uv uv pip install -q --link-mode copy \
        --python "/opt/$2/bin/python" $3
}
for name in stack ansible; do chroot "$1" python3 -m venv /opt/$name; done
install "$1" stack "-r /opt/requirements.txt keystone>=30.0.0 \
    openstack-cyborg>=17.0.0 openstack-placement>=16.0.0 PyMySQL"
install "$1" stack '--no-cache uWSGI'
install "$1" ansible ansible-core
umount "$1/uv"
rmdir "$1/uv"
rm "$1/usr/bin/uv"
"""
MOUNT = """
set -e
mount --make-rprivate /
ip link set lo up
mount -t tmpfs none "$WORK/machine"
cd "$WORK/machine"
mkdir upper work root
mount -t overlay -o "lowerdir=$TREE,upperdir=upper,workdir=work" overlay root
mount -t proc proc root/proc
for place in dev sys; do mount --rbind /$place root/$place; done
mkdir root/packages
cp -r "$WORK"/source "$WORK"/*.whl "$WORK/variables.yml" root/packages
chroot root sh -e
"""
LIFE = """
echo 127.0.0.1 localhost >/etc/hosts
cd /packages/source
export PYTHONPATH=$PWD/tools/minicloud PYTHONDONTWRITEBYTECODE=1
useradd --system --home-dir /var/lib/cyborg --create-home cyborg
/opt/stack/bin/python cyborg_gpu_driver/tests/installers/site_cloud.py start
chown -R cyborg /etc/cyborg
list() {
    # The running services write compiled modules at any time. stevedore has a
    # cache for each user, and pip leaves empty directories.
    find /etc /lib /usr /opt /boot /var/cache /var/lib/cyborg ! -type d \
        ! -name '*.pyc' ! -path '*/.cache/python-entrypoints/*' | sort
}
collections=/packages/ansible_collections/cyborg_gpu_driver
mkdir -p $collections
ln -s "$PWD/contrib/ansible" $collections/gpu
play() {
    ANSIBLE_COLLECTIONS_PATH=/packages /opt/ansible/bin/ansible-playbook \
        -i localhost, -e @/packages/variables.yml "cyborg_gpu_driver.gpu.$1"
}
list >/packages/before
cp -p /etc/cyborg/cyborg.conf /packages/cyborg.conf
play host
# There is no systemd, so these are the commands of the units.
conf=/etc/cyborg/cyborg.conf
/opt/stack/bin/cyborg-gpu --config-file $conf layout restore
# On a real host, the agent may use the hardware that root has prepared.
chown -R cyborg /var/lib/cyborg/gpu
setpriv --reuid cyborg --regid cyborg --init-groups \
    /opt/stack/bin/cyborg-agent --config-file $conf >/packages/agent.log 2>&1 &
/opt/stack/bin/python cyborg_gpu_driver/tests/installers/site_cloud.py wait
play host
kill $!
wait $! || :
play remove
play remove
list | diff /packages/before -
diff /packages/cyborg.conf $conf
echo nothing is left
"""


@scope.only_in_all
class SiteTest(installers.WorkCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.need('mmdebstrap', 'ip')
        key = hashlib.sha256('\n'.join((
            SUITE, PACKAGES, SERVICES, (installers.ROOT / 'requirements.txt')
            .read_text())).encode()).hexdigest()[:16]
        cls.tree = pathlib.Path(sys.prefix, 'cyborg-gpu-tests', key)
        if not cls.tree.exists():
            new = cls.tree.with_suffix('.new')
            shutil.rmtree(new, ignore_errors=True)
            new.parent.mkdir(exist_ok=True)
            cls.call('mmdebstrap', '--mode=root', '--variant=minbase',
                     f'--include={PACKAGES}', f'--customize-hook={SERVICES}',
                     SUITE, new)
            new.rename(cls.tree)

    @classmethod
    def call(cls, *command, **more):
        done = subprocess.run(
            command, cwd=installers.ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
            timeout=3 * scope.HANG, **more)
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    def test_offers_are_in_placement(self):
        source = self.copy_source()
        self.call(BIN / 'python', '-I', '-m', 'pip', 'wheel', '--no-deps',
                  '--no-build-isolation', '-q', '-w', self.work, source,
                  env={'PBR_VERSION': '1.0.0', 'PATH': f'{BIN}:/usr/bin:/bin'})
        (wheel,) = self.work.glob('*.whl')
        state = '/var/lib/cyborg/gpu'
        (self.work / 'variables.yml').write_text(yaml.safe_dump({
            'ansible_connection': 'local', 'ansible_become': False,
            'ansible_python_interpreter': '/usr/bin/python3',
            'cyborg_gpu_package': f'/packages/{wheel.name}',
            'cyborg_gpu_virtualenv': '/opt/stack',
            'cyborg_gpu_units': False,
            'cyborg_gpu_options': {
                'agent': {'enabled_drivers': 'cyborg_gpu_driver'},
                'gpu': {'simulate': 't4x4', 'policies': 'whole',
                        'simulate_state': f'{state}/hardware.json'},
                'gpu_policy:whole': {'mode': 'passthrough'}}}))
        (self.work / 'machine').mkdir()
        output = self.call(
            'unshare', '--mount', '--pid', '--net', '--fork',
            '--kill-child', 'sh', '-c', MOUNT, input=LIFE, env={
                **installers.DISTRIBUTION, 'WORK': str(self.work),
                'TREE': str(self.tree)})
        changed = list(map(int, re.findall(r'changed=(\d+)', output)))
        self.assertEqual([True, False, True, False], [*map(bool, changed)],
                         output)
        offers = re.findall(r'^offer compute1\S+ PGPU=1$', output, re.M)
        self.assertEqual(4, len(offers), output)
        self.assertIn('\nnothing is left\n', output)
