# SPDX-License-Identifier: Apache-2.0

"""The privileged context, and the samples that allow its start."""

import configparser
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys

from oslo_config import cfg
from oslo_config import fixture as config_fixture
from oslo_privsep import capabilities
from oslotest import base

from cyborg_gpu_driver import privsep

_ETC = pathlib.Path(__file__).resolve().parents[3] / 'etc'
_SUDOERS = _ETC / 'sudoers.d' / 'cyborg-gpu'
_FILTERS = _ETC / 'rootwrap.d' / 'cyborg-gpu.filters'
_SOCKET = '/tmp/tmp0a_9zxyw/privsep.sock'
_USER = 65534


class SampleTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(config_fixture.Config(cfg.CONF))

    def command(self, sample):
        """Return the agent's command for the sample's ``helper_command``."""
        (line,) = re.findall(r'^#   helper_command = (.*)$',
                             sample.read_text(encoding='utf-8'),
                             re.MULTILINE)
        self.conf.config(group='cyborg_gpu_privileged', helper_command=line)
        return privsep.gpu_context.helper_command(_SOCKET)

    def more(self, command):
        """Generate commands that must not be allowed."""
        yield [*command, '--config-file', '/tmp/own/privsep.sock']
        for place in ('/tmp/tmp0a_9zxy/../x/privsep.sock',
                      '/tmp/tmp0 --config-dir /tmp/x/privsep.sock'):
            yield [*command[:-1], *place.split(' ')]
        yield [word.replace('cyborg_gpu_driver', 'nova')
               for word in command]
        yield [word.replace('/etc/cyborg/', '/tmp/') for word in command]

    def test_sudo_allows_what_the_agent_runs_and_no_more(self):
        (allowed,) = re.findall(r'^Cmnd_Alias \w+ = (.*)$',
                                _SUDOERS.read_text(encoding='utf-8'),
                                re.MULTILINE)
        sudo, *command = self.command(_SUDOERS)
        self.assertEqual('sudo', sudo)
        # sudoers(5): arguments are matched as one string by fnmatch(3).
        self.assertTrue(fnmatch.fnmatchcase(' '.join(command), allowed))
        for other in self.more(command):
            self.assertFalse(fnmatch.fnmatchcase(' '.join(other), allowed),
                             other)

    def test_sudo_understands_it(self):
        visudo = shutil.which('visudo', path=os.defpath + ':/usr/sbin:/sbin')
        if visudo is None:
            self.skipTest('visudo is not installed')
        done = subprocess.run([visudo, '-cf', str(_SUDOERS)], check=False,
                              capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stderr)

    def test_rootwrap_allows_what_the_agent_runs_and_no_more(self):
        sudo, wrapper, _, *command = self.command(_FILTERS)
        self.assertEqual(('sudo', 'cyborg-rootwrap'), (sudo, wrapper))
        filters = configparser.RawConfigParser()
        filters.read(_FILTERS)
        ((_, value),) = filters.items('Filters')
        kind, program, user, *patterns = (
            part.strip() for part in value.split(','))
        self.assertEqual(('RegExpFilter', 'privsep-helper', 'root'),
                         (kind, program, user))

        def allows(words):
            return len(words) == len(patterns) and all(
                re.fullmatch(pattern, word)
                for pattern, word in zip(patterns, words))

        self.assertTrue(allows(command))
        for other in self.more(command):
            self.assertFalse(allows(other), other)


class CapabilityTest(base.BaseTestCase):

    def test_they_are_these(self):
        self.assertEqual(
            {capabilities.CAP_SYS_ADMIN, capabilities.CAP_SYS_PTRACE,
             capabilities.CAP_DAC_READ_SEARCH},
            _capabilities())

    def test_they_show_what_a_guest_has_open(self):
        if os.geteuid() != 0:
            self.skipTest('only root can have another user run something')
        guest = subprocess.Popen(['cat'], stdin=subprocess.PIPE, user=_USER,
                                 group=_USER, extra_groups=[], cwd='/')
        self.addCleanup(guest.communicate)
        kept = _capabilities()
        self.assertTrue(_sees_files(guest.pid, kept))
        for one in (capabilities.CAP_SYS_PTRACE,
                    capabilities.CAP_DAC_READ_SEARCH):
            self.assertFalse(_sees_files(guest.pid, kept - {one}), one)


def _capabilities():
    """Return the capabilities of the context in a new process.

    They are a default of oslo.config, which other tests in this process
    reset.
    """
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c',
         'from cyborg_gpu_driver import privsep\n'
         'print(*map(int, privsep.gpu_context.conf.capabilities))'],
        check=True, capture_output=True, text=True)
    return {int(number) for number in done.stdout.split()}


def _sees_files(pid, kept):
    """Whether root with only these capabilities sees a process's files."""
    child = os.fork()
    if child == 0:
        try:
            capabilities.drop_all_caps_except(kept, kept, [])
            place = f'/proc/{pid}/fd'
            found = [os.readlink(f'{place}/{name}')
                     for name in os.listdir(place)]
        except OSError:
            os._exit(1)
        os._exit(0 if found else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
