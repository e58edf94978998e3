# SPDX-License-Identifier: Apache-2.0

"""The distribution's RabbitMQ, as a separate node with a separate epmd."""

from __future__ import annotations

import os

from minicloud_lib import probes
from minicloud_lib import settings as settings_module
from minicloud_lib import steps

# /usr/sbin/rabbitmq-server wraps this program and insists on the system's user
# and directories.
_SERVER = '/usr/lib/rabbitmq/bin/rabbitmq-server'
_EPMD = '/usr/bin/epmd'


def is_installed() -> bool:
    return all(os.access(path, os.X_OK) for path in (_SERVER, _EPMD))


def parts(settings: settings_module.Settings) -> list:
    data = settings.data('rabbitmq')
    port = settings.port('rabbitmq')
    epmd = {'ERL_EPMD_PORT': str(settings.port('epmd')),
            'ERL_EPMD_ADDRESS': settings_module.ADDRESS}
    return [
        steps.Step('rabbitmq-files', (), lambda: _configure(settings)),
        # Started here, because an epmd that the node starts would outlive the
        # node.
        steps.Service('epmd', (), [_EPMD],
                      probes.port(settings.port('epmd')), epmd),
        steps.Service(
            'rabbitmq', ('rabbitmq-files', 'epmd'), [_SERVER],
            probes.broker(settings),
            {**epmd,
             # The node's cookie is in its home directory.
             'HOME': str(data),
             'RABBITMQ_NODENAME': f'minicloud{port}@localhost',
             'RABBITMQ_DIST_PORT': str(settings.port('rabbitmq-nodes')),
             'RABBITMQ_CONF_ENV_FILE': str(settings.etc('rabbitmq-env')),
             'RABBITMQ_CONFIG_FILE': str(settings.etc('rabbitmq.conf')),
             'RABBITMQ_ENABLED_PLUGINS_FILE':
                 str(settings.etc('rabbitmq-plugins')),
             'RABBITMQ_MNESIA_BASE': str(data / 'mnesia'),
             'RABBITMQ_LOG_BASE': str(data / 'log'),
             'RABBITMQ_LOGS': '-',
             'RABBITMQ_GENERATED_CONFIG_DIR': str(data / 'config'),
             'RABBITMQ_PID_FILE': str(data / 'rabbitmq.pid'),
             'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS':
                 '-kernel inet_dist_use_interface {127,0,0,1} '
                 # Waiting threads do not spin, so that the processors are
                 # free for other services.
                 '+sbwt none +sbwtdcpu none +sbwtdio none'}),
    ]


def _configure(settings):
    user = probes.broker_user()
    settings.data('rabbitmq').mkdir(exist_ok=True)
    settings.etc('rabbitmq-env').touch()
    settings.etc('rabbitmq-plugins').write_text('[].\n', encoding='utf-8')
    # This format has no sections.
    options = {
        'listeners.tcp.1':
            f'{settings_module.ADDRESS}:{settings.port("rabbitmq")}',
        'default_user': user, 'default_pass': settings.password(user),
        'log.console.level': 'warning'}
    path = settings.etc('rabbitmq.conf')
    path.touch(mode=0o600)
    path.write_text(''.join(f'{name} = {value}\n'
                            for name, value in options.items()),
                    encoding='utf-8')
