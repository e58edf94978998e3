# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""New settings from changed configuration files, without a restart.

cyborg-agent does not reload its drivers. On SIGHUP its master process calls
``CONF.mutate_config_files()`` (cyborg/cmd/agent.py, ``restart_method``) and
replaces the worker by a new fork of itself, whose drivers still have the
settings of the start. So the driver watches the files itself.

The driver reads the files into a separate ``ConfigOpts`` and checks them
before anything uses them. ``mutate_config_files()`` on Cyborg's object would
change options of Cyborg that the operator did not ask to reload, and the
driver could not undo that if a value turned out to be wrong.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.conf import validation

LOG = logging.getLogger(__name__)

_REFERENCE = re.compile(r'\$\{?([_a-z][\._a-z0-9]*)', re.IGNORECASE)
"""A reference to another option, in the syntax of oslo.config's templates."""
_OURS = ('gpu', 'gpu_policy')
_UNREADABLE = (cfg.Error, OSError, ValueError, RecursionError)
"""Exceptions of oslo.config for files or values that it cannot read."""

RESTART = frozenset(option.name for option in gpu_conf.GPU_OPTS
                    if not option.mutable)
"""Options of ``[gpu]`` that need a restart of cyborg-agent."""


class Watch:
    """Notices that the configuration files of a process have changed.

    :param conf: Cyborg's options, parsed from the files. It is only read.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        self._conf = conf
        self._process = os.getpid()
        self._taken = self._pending = _digest(conf)
        self._started_with = _fixed(conf)

    def changed(self) -> policies.Settings | None:
        """The settings of changed files; None if the old ones stay in force.

        A change counts after two calls in a row have found the same files,
        because an editor may be writing one now. In a new process a change
        counts at once: the agent has started this worker in the place of one
        that may already have had newer settings.

        Each change is read once. If it is wrong, one log message says so.
        """
        found = _digest(self._conf)
        settled = found == self._pending or self._process != os.getpid()
        self._process = os.getpid()
        self._pending = found
        if found == self._taken or not settled:
            return None
        self._taken = found
        try:
            settings = policies.read(_parse(self._conf))
        except exception.InvalidConfiguration as error:
            self._refuse(error, validation.where(
                self._conf, error.kwargs['group'], error.kwargs['option']))
        except (exception.GpuDriverError, *_UNREADABLE) as error:
            self._refuse(error, validation.files(self._conf))
        else:
            self._warn()
            return settings
        return None

    def _refuse(self, error: Exception, paths: Iterable[str]) -> None:
        LOG.error('The changed configuration is invalid and is not used: '
                  '%(files)s: %(error)s',
                  {'files': ', '.join(paths), 'error': error})

    def _warn(self) -> None:
        """Name the options that have changed and need a restart."""
        now = _fixed(self._conf)
        for name in sorted(RESTART):
            if now.get(name) != self._started_with.get(name):
                LOG.warning(
                    '[gpu] %(option)s has changed in %(files)s and needs a '
                    'restart of cyborg-agent. The old value stays in effect.',
                    {'option': name, 'files': ', '.join(
                        validation.where(self._conf, 'gpu', name))})


def _digest(conf: cfg.ConfigOpts) -> Mapping[str, bytes | None]:
    """The checksum of each file; None for a file that cannot be read.

    Times are not compared, because a file can be replaced by an older one.
    """
    found: dict[str, bytes | None] = {}
    for path in validation.files(conf):
        try:
            with open(path, 'rb') as stream:
                found[path] = hashlib.sha256(stream.read()).digest()
        except OSError:
            found[path] = None
    return found


def _fixed(conf: cfg.ConfigOpts) -> Mapping[str, str]:
    """Options that need a restart, with their text in the files."""
    return {name: text for group, name, text in _assigned(conf)
            if group == 'gpu' and name in RESTART}


def _assigned(conf: cfg.ConfigOpts) -> Iterator[tuple[str, str, str]]:
    """Group, option and text of each assignment to this driver's groups."""
    for _path, sections in validation.sections(conf):
        for section, options in sections.items():
            group = section.lower()
            if group.partition(':')[0] in _OURS:
                for option, texts in options.items():
                    for text in texts:
                        yield group, option, text


def _parse(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """The files of ``conf`` as they are now.

    :raises: one of ``_UNREADABLE``.
    """
    fresh = cfg.ConfigOpts()
    arguments = []
    for option, paths in (('--config-file', conf.config_file),
                          ('--config-dir', conf.config_dir)):
        for path in paths or ():
            arguments += [option, path]
    fresh(arguments, project='cyborg', default_config_files=[],
          default_config_dirs=[])
    for _group, _option, text in _assigned(conf):
        for name in _REFERENCE.findall(text):
            _lend(conf, fresh, name)
    return fresh


def _lend(conf: cfg.ConfigOpts, fresh: cfg.ConfigOpts, name: str) -> None:
    """Register an option of Cyborg to which a value of this driver refers.

    The option gets the value that is in force in Cyborg.
    """
    group, dot, option = name.rpartition('.')
    if group in _OURS:
        return
    try:
        value = conf[group][option] if dot else conf[name]
    except (cfg.Error, KeyError, TypeError, ValueError):
        # Then it is an option of this driver's groups, or a mistake, which
        # the read of the value reports.
        return
    if not isinstance(value, cfg.ConfigOpts.GroupAttr):
        fresh.register_opt(cfg.StrOpt(option), group=group or None)
        fresh.set_override(option, str(value), group=group or None)
