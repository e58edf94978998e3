# SPDX-License-Identifier: Apache-2.0


"""The released Cyborg in this process: API, conductor and agent.

They communicate through oslo.messaging's in-memory transport, so there is no
broker. The API's pipeline is the released one without the Keystone filter: the
caller sends the headers that Keystone's filter would add to identify the user.

Cyborg keeps its configuration in a process-wide object. Therefore a process
can run only one Cyborg at a time.
"""

from __future__ import annotations

import os

import oslo_messaging
from cyborg import context
from cyborg import objects
from cyborg.agent import manager as agent_manager
from cyborg.api import app as cyborg_app
from cyborg.common import config as cyborg_config
from cyborg.common import constants
from cyborg.common import rpc
from cyborg.common import service as cyborg_service
from cyborg.conductor import manager as conductor_manager
from cyborg.db.sqlalchemy import api as cyborg_db
from cyborg.objects import base as objects_base
from oslo_config import cfg
from oslo_messaging.rpc import dispatcher

from demo_lib import configfile
from demo_lib import database
from demo_lib import httpd

_PASTE = {
    'pipeline:main': {'pipeline': 'request_id api_v2'},
    'app:api_v2': {'paste.app_factory': 'cyborg.api.app:app_factory'},
    'filter:request_id': {
        'paste.filter_factory': 'oslo_middleware:RequestId.factory'},
}
_EXCHANGE = 'cyborg'


def configuration(directory: str, database_path: str, host: str,
                  placement_url: str, compute_url: str,
                  drivers: list[str]) -> configfile.Sections:
    """Return the configuration of Cyborg without broker and Keystone."""
    return {
        'DEFAULT': {
            'host': host, 'transport_url': 'fake://',
            'control_exchange': _EXCHANGE, 'state_path': directory,
            'rpc_response_timeout': 60},
        'database': {'connection': database.url(database_path)},
        'oslo_concurrency': {'lock_path': os.path.join(directory, 'locks')},
        'api': {'api_paste_config': configfile.write(
            os.path.join(directory, 'api-paste.ini'), _PASTE)},
        'placement': {'auth_type': 'admin_token', 'token': 'admin',
                      'endpoint': placement_url,
                      'endpoint_override': placement_url},
        'nova': {'auth_type': 'none', 'endpoint': compute_url,
                 'endpoint_override': compute_url},
        'agent': {'enabled_drivers': drivers, 'resource_provider_name': host,
                  'resource_provider_startup_retries': 0},
    }


class CyborgService:
    """API, conductor and agent, stopped and started like daemons.

    :param config_path: a file with :func:`configuration` and other options.
    :param database_path: a copy of the template.
    :param log: whether to set up logging from the file, as the daemons do.
        Otherwise the logging of the test does not change.
    """

    def __init__(self, config_path: str, database_path: str,
                 log: bool = False):
        arguments = ['cyborg', '--config-file', config_path]
        self._database = database.Attached(
            cyborg_db.main_context_manager, database_path)
        if log:
            cyborg_service.prepare_service(arguments)
        else:
            cyborg_config.parse_args(arguments)
            objects.register_all()
        self._servers = []
        self._httpd = None
        self.conductor = None
        self.agent = None

    @property
    def url(self) -> str:
        """The URL of the API, without ``/v2``."""
        return self._httpd.url

    def start(self) -> None:
        """Start conductor and API."""
        self.conductor = conductor_manager.ConductorManager(
            constants.CONDUCTOR_TOPIC, cfg.CONF.host)
        self._serve(constants.CONDUCTOR_TOPIC, self.conductor)
        self._httpd = httpd.Httpd(cyborg_app.load_app())

    def start_agent(self) -> None:
        """Start the agent; it reports only when :meth:`report` is called.

        The agent has no periodic timer here, so that the caller decides when
        it reports.
        """
        self.agent = agent_manager.AgentManager(
            constants.AGENT_TOPIC, cfg.CONF.host)
        self._serve(constants.AGENT_TOPIC, self.agent)

    def report(self) -> None:
        """Do now what the agent's periodic task does every 60 s."""
        self.agent.update_available_resource(context.get_admin_context())

    def handles_in_use(self) -> list[str]:
        """Return the UUIDs of the attach handles that Cyborg has in use.

        They come from Cyborg's objects, because its API does not show them.
        """
        return [handle.uuid for handle in objects.AttachHandle.list(
            context.get_admin_context()) if handle.in_use]

    def stop(self) -> None:
        """Stop everything and leave no configuration behind."""
        if self._httpd is not None:
            self._httpd.stop()
        for server in self._servers:
            server.stop()
        for server in self._servers:
            server.wait()
        self._stop_drivers()
        rpc.cleanup()
        self._database.detach()
        cfg.CONF.reset()

    def _stop_drivers(self):
        """Stop the threads of the GPU drivers, as the agent's end would."""
        if self.agent is not None:
            for driver in self.agent._rt.acc_drivers:
                if hasattr(driver, 'stop'):
                    driver.stop()

    def _serve(self, topic, manager):
        server = oslo_messaging.get_rpc_server(
            rpc.TRANSPORT,
            oslo_messaging.Target(topic=topic, server=cfg.CONF.host),
            [manager], executor='threading',
            serializer=rpc.RequestContextSerializer(
                objects_base.CyborgObjectSerializer()),
            access_policy=dispatcher.DefaultRPCAccessPolicy)
        server.start()
        self._servers.append(server)
        manager.init_host()
