# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu support-bundle``: the parts, and the archive of them."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import io
import json
import os
import platform
import re
import stat
import tarfile
import time
import types
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import BinaryIO
from urllib import parse

from cliff import columns
from cliff import command
from oslo_config import cfg
from oslo_config import iniparser
from oslo_utils import strutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import context
from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.cmd.doctor import command as doctor
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.conf import validation
from cyborg_gpu_driver.record import store

# Removes secrets from data that is sent to others.
#
# Pure: the functions take texts and documents, and return them without
# secrets.

MASK = '***'
_LEAST = 4
"""Least characters of a secret: a shorter one matches unrelated texts."""
_SECRET_NAME = re.compile('pass|secret|token|credential|private|(^|_)key$'
                          '|_key_|transport_url|connection', re.IGNORECASE)
_PUBLIC_NAME = re.compile('^send_|_(roles|required|time|debug|trace)$',
                          re.IGNORECASE)
"""Names of switches, times and roles, such as service_token_roles of
keystonemiddleware. Their values, such as "service" and "True", are words of
any log."""
_USER_INFO = re.compile(r'(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)'
                        r'(?P<user>[^\s/@:"\']*):[^\s"\'<>]*@')
# Tokens of Keystone: X-Auth-Token and Authorization headers in a log.
_HEADER = re.compile(r'(?i)((?:x-auth-token|x-subject-token|x-service-token'
                     r'|authorization)["\']?\s*[:=]\s*["\']?)'
                     r'(?:bearer |basic )?[^\s"\',]+')


def is_secret(name: str) -> bool:
    """Whether an option of this name may hold a secret."""
    return bool(_SECRET_NAME.search(name)
                and not _PUBLIC_NAME.search(name))


def of_option(name: str, values: Iterable[str]) -> Iterator[str]:
    """Yield the secrets in the values of an option, as they are written.

    :param name: the name of the option. If :func:`is_secret`, each value is
        a secret as a whole.
    """
    for value in values:
        yield from _passwords(value)
        if is_secret(name):
            yield value


def _passwords(value: str) -> Iterator[str]:
    """Yield the passwords in a URL, for each host as in transport_url."""
    _, _, rest = value.partition('://')
    for part in rest.split(','):
        password = part.rpartition('@')[0].partition(':')[2]
        if password:
            yield password


class Redactor:
    """Replaces known secrets and texts that look like secrets.

    :param secrets: texts that must not occur.
    """

    def __init__(self, secrets: Iterable[str]):
        # The longest first, because one may be the beginning of another.
        known = sorted({text for text in secrets if len(text) >= _LEAST},
                       key=len, reverse=True)
        self._secrets = known and re.compile('|'.join(map(re.escape, known)))

    def of(self, value: Any) -> Any:
        """Return a document for JSON without secrets."""
        if isinstance(value, str):
            return '\n'.join(map(self._line, value.split('\n')))
        if isinstance(value, dict):
            return {self.of(key): self.of(item)
                    for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.of(item) for item in value]
        return value

    def _line(self, text: str) -> str:
        if self._secrets:
            text = self._secrets.sub(MASK, text)
        text = _USER_INFO.sub(rf'\g<scheme>\g<user>:{MASK}@', text)
        text = _HEADER.sub(rf'\g<1>{MASK}', text)
        return strutils.mask_password(text, MASK)


_NAME = 'cyborg-gpu-support'
_MODE = 0o600
_BYTES = 1 << 20
"""Bytes from the end of a record or of the agent's log."""
_LEFT_OUT = '(left out)'
_OURS = ('gpu', 'cyborg_gpu_privileged', 'cyborg_gpu_baremetal')
_OUR_GROUPS = 'gpu_policy:'
_SHOWN = {
    'DEFAULT': {'debug', 'host', 'log_dir', 'log_file', 'state_path',
                'use_journal', 'use_stderr', 'use_syslog'},
    'agent': {'enabled_drivers'},
    'placement': {'auth_type', 'endpoint_override', 'interface',
                  'region_name', 'valid_interfaces'},
}
"""Options of Cyborg whose values are shown. Other options are shown without
values, because only an installed Cyborg knows which of them are secret."""
_PACKAGES = re.compile(
    'oslo|os-|os_|openstack|keystone|python-.*client|cyborg|nova|placement'
    '|ironic|nvidia|cliff|stevedore|pbr|eventlet|jsonschema|osc', re.I)


class SupportBundle(command.Command):
    """Write one archive with what a bug report needs.

    The archive contains versions, the options without secrets, the records
    of the GPUs, the output of doctor, and the ends of the audit record and of
    the agent's log.
    index.json lists the parts that are missing. The command changes nothing,
    and queries no service but Placement.
    """

    checks_options = False
    """Some bug reports are about wrong options."""

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--output', metavar='FILE',
            help='the .tar.gz file to write, which must not exist (default: '
                 f'{_NAME}-TIME.tar.gz in this directory)')
        return parser

    def take_action(self, parsed_args):
        now = datetime.datetime.now(datetime.timezone.utc)
        directory = f'{_NAME}-{now:%Y%m%dT%H%M%SZ}'
        path = parsed_args.output or f'{directory}.tar.gz'
        machine = self.app.machine
        with _created(path) as stream:
            missing, found = {}, {}
            for name, make in _parts(machine):
                try:
                    found[name] = make()
                except (Exception, SystemExit) as error:
                    # The bundle exists to report what is broken on this host.
                    missing[name] = f'{type(error).__name__}: {error}'
            redactor = Redactor(_secrets(machine.conf))
            missing = redactor.of(missing)
            found = redactor.of({'index.json': {
                'kind': 'cyborg-gpu support-bundle', 'version': 1,
                'taken': now.isoformat(timespec='seconds'),
                'missing': missing}, **found})
            with tarfile.open(fileobj=stream, mode='w:gz') as tar:
                for name, content in found.items():
                    _add(tar, f'{directory}/{name}', content)
        write = self.app.stdout.write
        write(f'Wrote {path}, which only its owner can read:\n')
        for name in found:
            write(f'  {name}\n')
        for name, problem in missing.items():
            write(f'Missing: {name}: {problem}\n')
        write('Passwords and tokens are masked. UUIDs, serial numbers and '
              'names of hosts are not.\nRead it before you send it.\n')


@contextlib.contextmanager
def _created(path: str) -> Iterator[BinaryIO]:
    """Create a file that only its owner may read; remove it on an error."""
    try:
        # With O_EXCL, open() does not follow a link.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL,
                             _MODE)
        try:
            with open(descriptor, 'wb') as stream:
                yield stream
        except BaseException:
            os.unlink(path)
            raise
    except OSError as error:
        raise exception.InvalidValue(
            what='--output', value=path,
            expected=f'it cannot be written: {error.strerror}; give another '
                     'path') from error


def _parts(machine: context.Machine
           ) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the file name of each part, and the function that makes it.

    The function returns a document for JSON, or a text.
    """
    yield 'versions.json', lambda: _versions(machine)
    yield 'configuration.json', lambda: _configuration(machine)
    records = store.of(machine.state_path)
    for address in records.addresses():
        file = records.path(address)
        yield (f'records/{os.path.basename(file)}',
               functools.partial(_tail, file))
    yield 'doctor.json', lambda: _answer(machine)
    path = os.path.join(machine.state_path, 'audit.jsonl')
    if os.path.exists(path):
        yield 'audit.jsonl', lambda: _tail(path)
    yield 'agent-log.txt', lambda: _tail(_log_path(machine.conf))


def _versions(machine: context.Machine) -> dict[str, Any]:
    system = None
    with contextlib.suppress(OSError):
        system = platform.freedesktop_os_release().get('PRETTY_NAME')
    return {
        'cyborg_gpu_driver': main.version(),
        'python': platform.python_version(),
        'kernel': platform.platform(),
        'system': system,
        'nvidia_driver': machine.platform.sysfs.read_optional(
            'module', 'nvidia', 'version'),
        'simulated': machine.platform.simulated,
        'root': machine.platform.is_root(),
        'packages': {
            name: found.version for found, name in sorted(
                ((found, found.metadata['Name'] or '')
                 for found in importlib.metadata.distributions()),
                key=lambda item: item[1])
            if _PACKAGES.match(name)},
    }


def _answer(machine: context.Machine) -> dict[str, Any]:
    """Return the rows and the remarks of the doctor."""
    said = io.StringIO()
    # The command uses only these attributes of cliff's application.
    diagnosing = doctor.Doctor(types.SimpleNamespace(
        machine=machine, stdout=io.StringIO()), None)
    parsed = diagnosing.get_parser('').parse_args(
        ['-f', 'json', '--without-cloud'])
    with contextlib.redirect_stderr(said):
        names, rows = diagnosing.take_action(parsed)
    return {'rows': [
        {name: (cell.machine_readable()
                if isinstance(cell, columns.FormattableColumn) else cell)
         for name, cell in zip(names, row, strict=True)} for row in rows],
        'remarks': said.getvalue().splitlines()}


def _configuration(machine: context.Machine) -> dict[str, Any]:
    """Return this driver's options with values, and other options' names.

    ``problem`` says why the policies cannot be used, ``gpu`` has the values
    in effect, and ``in_files`` the options by group. A few of Cyborg's
    options have values there.
    """
    problem = None
    try:
        policies.read(machine.conf)
    except exception.GpuDriverError as error:
        problem = str(error)
    files = list(validation.files(machine.conf))
    return {
        'files': files, 'problem': problem,
        'gpu': {option.dest: machine.conf.gpu[option.dest]
                for option in gpu_conf.GPU_OPTS},
        'in_files': {group: {name: values if _is_shown(group, name)
                             else _LEFT_OUT
                             for name, values in options.items()}
                     for group, options in _sections(files)},
    }


def _is_shown(group: str, name: str) -> bool:
    return (group in _OURS or group.startswith(_OUR_GROUPS)
            or name in _SHOWN.get(group, ())) and not is_secret(name)


def _secrets(conf: cfg.ConfigOpts) -> tuple[str, ...]:
    """Return the secrets in the configuration files of Cyborg and Nova."""
    found: list[str] = []
    for group, options in _sections([
            *validation.files(conf),
            *validation.files_of('nova', 'nova-compute')]):
        for name, values in options.items():
            if _is_shown(group, name):
                values = [value for value in values if '://' in value]
            found += of_option(name, values)
    # A password is quoted in a URL, but not elsewhere.
    return (*found, *map(parse.unquote, found))


def _log_path(conf: cfg.ConfigOpts) -> str:
    """Return the agent's log file as oslo.log finds it."""
    found = {name: values[-1] for group, options
             in _sections(validation.files(conf))
             if group == 'DEFAULT' for name, values in options.items()}
    name = found.get('log_file') or (
        'cyborg-agent.log' if 'log_dir' in found else '')
    if not name:
        raise exception.InvalidValue(
            what='[DEFAULT] log_file', value='',
            expected='without it, the log is not in a file')
    return os.path.join(found.get('log_dir', ''), name)


def _sections(files: Iterable[str]
              ) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield the groups of files with their options' values, as written.

    Skip a file that cannot be read, because nothing of it is in the bundle.
    """
    for path in files:
        sections: dict[str, dict[str, list[str]]] = {}
        with contextlib.suppress(OSError, UnicodeDecodeError, cfg.Error,
                                 iniparser.ParseError):
            cfg.ConfigParser(path, sections).parse()
        yield from sections.items()


def _tail(path: str, length: int = _BYTES) -> str:
    """Return the end of a regular file."""
    # If the path is a pipe, open() would wait forever without O_NONBLOCK.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f'{path} is not a regular file')
        return os.pread(descriptor, length, max(
            0, found.st_size - length)).decode('utf-8', 'replace')
    finally:
        os.close(descriptor)


def _add(tar: tarfile.TarFile, name: str, content: Any) -> None:
    if not isinstance(content, str):
        content = json.dumps(content, indent=1, default=str) + '\n'
    data = content.encode('utf-8', 'replace')
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), _MODE
    member.mtime = int(time.time())
    tar.addfile(member, io.BytesIO(data))
