# SPDX-License-Identifier: Apache-2.0

"""Refusing configuration files that contain mistakes.

oslo.config ignores an option that nothing registers, and checks a value only
when code reads it. A misspelt ``match_model`` would then make a policy govern
every GPU of the host. So the ``[gpu]`` and ``[gpu_policy:NAME]`` groups are
checked as a whole before anything uses them.
"""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf

_POLICY = 'gpu_policy'
_PATHS = ('state_path', 'sysfs_root')
_NOT_VALID = ' is not valid: '


def check_options(conf: cfg.ConfigOpts, policies: Sequence[str]) -> None:
    """Check every option of ``[gpu]`` and of the policies that it lists.

    :raises InvalidConfiguration: naming group, option, value and what would
        be right: for an unknown option, a policy group that is not listed,
        or a value of a wrong type or outside its range.
    """
    known = {'gpu': gpu_conf.GPU_OPTS}
    for name in policies:
        known[gpu_conf.policy_group(name).name] = gpu_conf.POLICY_OPTS
    _check_names(conf, known, policies)
    for group, options in known.items():
        for option in options:
            value(conf, group, option.name)
    for option in _PATHS:
        path = value(conf, 'gpu', option)
        if not os.path.isabs(path):
            raise invalid('gpu', option, path, 'expected an absolute path')


def value(conf: cfg.ConfigOpts, group: str, option: str) -> Any:
    """Value of an option.

    :raises InvalidConfiguration: with oslo.config's reason.
    """
    try:
        return conf[group][option]
    except (cfg.Error, ValueError, RecursionError) as error:
        # oslo.config's message names the option and the file first.
        raise invalid(
            group, option, _raw(conf, group, option),
            str(error).partition(_NOT_VALID)[2] or str(error)) from error


def invalid(group: str, option: str, found: Any, reason: str
            ) -> exception.InvalidConfiguration:
    """The exception for one option."""
    if isinstance(found, list):
        found = ', '.join(map(str, found))
    elif isinstance(found, dict):
        found = ', '.join(f'{name}:{value}' for name, value in found.items())
    return exception.InvalidConfiguration(
        group=group, option=option, value=found, reason=reason)


def _check_names(conf, known, policies):
    folded = {group.lower(): group for group in known}
    for path, content in sections(conf):
        for section, assigned in content.items():
            group = folded.get(section.lower())
            if group is None:
                _check_group(section, path, policies)
                continue
            # oslo.config also finds an option by its Python name.
            names = {name for option in known[group]
                     for name in (option.name, option.dest)}
            for name in assigned:
                if name not in names:
                    raise invalid(group, name, assigned[name][-1],
                                  f'unknown option in {path}; '
                                  + _nearest(name, names))


def _check_group(section, path, policies):
    """Refuse a group that was meant to be a policy and is not one."""
    kind, colon, name = section.partition(':')
    if not colon:
        return
    if kind.lower() == _POLICY:
        raise invalid(
            'gpu', 'policies', ', '.join(policies) or '(unset)',
            f'{path} has a group [{section}] that is not listed here: add '
            f'{name} to [gpu] policies, or remove the group')
    if difflib.get_close_matches(kind.lower(), [_POLICY], cutoff=0.8):
        raise invalid(
            section, '(group)', '', f'unknown group in {path}; did you mean '
            f'[{_POLICY}:{name}]?')


def _nearest(name, names):
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f'did you mean {near[0]}?'
    return 'the options are ' + ', '.join(sorted(names))


def sections(conf: cfg.ConfigOpts
             ) -> Iterator[tuple[str, dict[str, dict[str, list[str]]]]]:
    """Each configuration file with its assignments, later files last."""
    for path in files(conf):
        content: dict[str, dict[str, list[str]]] = {}
        try:
            cfg.ConfigParser(path, content).parse()
        except (OSError, ValueError, cfg.ParseError):
            # oslo.config could read the file. Another process may be
            # replacing it now.
            continue
        yield path, content


def files(conf: cfg.ConfigOpts) -> Iterator[str]:
    """The configuration files; later ones override earlier ones."""
    try:
        single, directories = conf.config_file, conf.config_dir
    except cfg.NoSuchOptError:
        # No files were parsed: code sets the options.
        return
    yield from single or ()
    yield from _in_directories(directories or ())


def files_of(project: str, program: str) -> list[str]:
    """The existing files that a service reads if none is named."""
    return [*cfg.find_config_files(project, program),
            *_in_directories(cfg.find_config_dirs(project, program))]


def _in_directories(directories):
    for directory in directories:
        yield from sorted(glob.glob(os.path.join(
            os.path.expanduser(directory), '*.conf')))


def _raw(conf, group, option):
    """The text that the files assign to an option; the last one counts."""
    found = '(see reason)'
    for _path, content in sections(conf):
        for section, assigned in content.items():
            if section.lower() == group.lower() and option in assigned:
                found = assigned[option][-1]
    return found
